//! Geometry: pieces cover everything once, extents are where a copy token by token would go, and
//! nothing that a peer says reaches beyond what was lent.

mod admission;
mod plan;
mod sizes;
mod world;
