//! Shapes of KV caches, as models have them.

use super::options::name;
use clap::{Args, ValueEnum};
use kvferry::layout::Role;

#[derive(Args, Clone, Debug)]
pub(crate) struct ShapeOptions {
    /// Model whose shape to use; the options below change parts of it
    #[arg(long, value_enum, default_value_t = Preset::Llama8b)]
    shape: Preset,
    /// Layers
    #[arg(long)]
    layers: Option<u32>,
    /// Heads of the keys, and of the values
    #[arg(long)]
    kv_heads: Option<u32>,
    /// Elements of a head
    #[arg(long)]
    head_dim: Option<u32>,
    /// Elements of the compressed latent of a token, which takes the place of keys and values; 0 for none
    #[arg(long)]
    latent: Option<u32>,
    /// Tokens of a page
    #[arg(long)]
    page_tokens: Option<u32>,
    /// Bytes of an element
    #[arg(long)]
    dtype_bytes: Option<u32>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Preset {
    #[value(name = "llama-8b")]
    Llama8b,
    #[value(name = "llama-70b")]
    Llama70b,
    DeepseekMla,
}

/// What one token takes in the pools, and how pools are cut into pages.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) name: String,
    pub(crate) layers: u32,
    /// What each layer has a pool for.
    pub(crate) roles: &'static [Role],
    pub(crate) heads: u32,
    /// Bytes of one head of one token.
    pub(crate) head_bytes: u64,
    pub(crate) page_tokens: u32,
}

impl ShapeOptions {
    pub(crate) fn shape(&self) -> Result<Shape, String> {
        let (layers, kv_heads, head_dim, latent, page_tokens) = match self.shape {
            Preset::Llama8b => (32, 8, 128, 0, 16),
            Preset::Llama70b => (80, 8, 128, 0, 16),
            Preset::DeepseekMla => (61, 0, 0, 576, 64),
        };
        let latent = self.latent.unwrap_or(latent);
        let (roles, heads, head_dim): (&'static [Role], _, _) = match latent {
            0 => {
                let heads = self.kv_heads.unwrap_or(kv_heads);
                (&[Role::Key, Role::Value], heads, self.head_dim.unwrap_or(head_dim))
            }
            latent => (&[Role::Latent], 1, latent),
        };
        let (layers, dtype_bytes) = (self.layers.unwrap_or(layers), self.dtype_bytes.unwrap_or(2));
        let shape = Shape {
            name: name(&self.shape),
            layers,
            roles,
            heads,
            head_bytes: u64::from(head_dim) * u64::from(dtype_bytes),
            page_tokens: self.page_tokens.unwrap_or(page_tokens),
        };
        match shape.token_bytes() > 0 && shape.page_tokens > 0 {
            true => Ok(shape),
            false => Err("a shape needs layers, heads, elements and tokens a page".into()),
        }
    }
}

impl Shape {
    /// Bytes that this many tokens, one page's at most, take in a page of one pool.
    pub(crate) fn bytes_in_page(&self, tokens: u32) -> usize {
        let bytes = u64::from(tokens) * u64::from(self.heads) * self.head_bytes;
        usize::try_from(bytes).expect("pages are smaller than memory")
    }

    /// Bytes of one page of one pool.
    pub(crate) fn page_bytes(&self) -> usize {
        self.bytes_in_page(self.page_tokens)
    }

    /// Bytes of one token in all pools.
    pub(crate) fn token_bytes(&self) -> u64 {
        let pools = u64::from(self.layers) * self.roles.len() as u64;
        pools * u64::from(self.heads) * self.head_bytes
    }
}
