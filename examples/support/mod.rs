//! What the two examples need that is not about kvferry: options, shapes of models, contents of pages, figures.

#![allow(dead_code, reason = "each side uses its part")]

pub(crate) mod options;
pub(crate) mod pages;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod shape;
pub(crate) mod socket;
