//! Whose process this is: what a forked child inherits is its parent's, and is left alone there.

/// The process in which something was made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Home(u32);

impl Home {
    /// This process.
    pub(crate) fn here() -> Self {
        Self(std::process::id())
    }

    /// Whether this is still that process, and not one forked from it.
    pub(crate) fn is_here(self) -> bool {
        self == Self::here()
    }

    /// Its number.
    pub(crate) fn process(self) -> u32 {
        self.0
    }
}
