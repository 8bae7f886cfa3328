//! Geometry: pieces cover everything once, extents are where a copy token by token would go, every byte
//! of every rank arrives once, and nothing that a peer says reaches beyond what was lent.

mod admission;
mod conversions;
mod group;
mod plan;
mod random;
mod ranks;
mod sizes;
mod state;
mod world;
