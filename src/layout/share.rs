//! What one rank owes another.

use super::{HeadSpan, Layers, TokenShard};

/// What one prefill rank owes one decode rank. Both make their pairing from it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Share {
    /// Heads owed; if none are named, all that the destination holds.
    pub heads: Option<HeadSpan>,
    /// Global layers owed; if none are named, all, which both sides must hold.
    pub layers: Option<Layers>,
    /// How tokens are dealt out to ranks on the sending side.
    pub source: TokenShard,
    /// How tokens are dealt out to ranks on the receiving side.
    pub destination: TokenShard,
}

impl Share {
    /// Everything both sides hold.
    pub const WHOLE: Self =
        Self { heads: None, layers: None, source: TokenShard::WHOLE, destination: TokenShard::WHOLE };

    /// Of these heads only.
    #[must_use]
    pub const fn heads(mut self, heads: HeadSpan) -> Self {
        self.heads = Some(heads);
        self
    }

    /// Of these global layers only.
    #[must_use]
    pub fn layers(mut self, layers: impl Into<Layers>) -> Self {
        self.layers = Some(layers.into());
        self
    }

    /// With tokens dealt out to ranks on either side.
    #[must_use]
    pub const fn tokens(mut self, source: TokenShard, destination: TokenShard) -> Self {
        (self.source, self.destination) = (source, destination);
        self
    }

    /// Whether there can be such a share; if not, what of it is impossible.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let Self { heads, source, destination, .. } = self;
        match (heads.is_none_or(HeadSpan::is_possible), source.is_possible(), destination.is_possible()) {
            (false, _, _) => Err("heads"),
            (_, false, _) => Err("tokens of the source"),
            (_, _, false) => Err("tokens of the destination"),
            (true, true, true) => Ok(()),
        }
    }
}
