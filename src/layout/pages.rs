//! Scattered pages of one request.

use std::ops::Range;

/// Pages of one group in the order of their tokens: `indices[i]` holds the tokens from
/// `first + i * page_tokens` on. For row groups, `first` is 0 and the indices are rows.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct PageList {
    /// Token at the start of the first page; a multiple of the group's page size.
    pub first: u32,
    /// Page numbers.
    pub indices: Vec<u32>,
}

/// Page numbers in whatever integer type the caller keeps them. Copied and checked in the call.
#[derive(Clone, Debug)]
pub struct Pages<'a> {
    pub(crate) source: PagesSource<'a>,
}

#[derive(Clone, Debug)]
pub(crate) enum PagesSource<'a> {
    I32(&'a [i32]),
    I64(&'a [i64]),
    Range(Range<u32>),
    U32(&'a [u32]),
    Usize(&'a [usize]),
}

/// A page number outside its group.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("page number {value} at place {at} is outside 0..{items}")]
#[non_exhaustive]
pub struct PagesError {
    /// Its place in the list.
    pub at: usize,
    /// The number.
    pub value: i128,
    /// Pages in the group.
    pub items: u32,
}

impl PageList {
    /// Pages from the token `first` on.
    pub fn new(first: u32, indices: Vec<u32>) -> Self {
        Self { first, indices }
    }

    /// Tokens these pages hold at this page size.
    pub fn covers(&self, _page_tokens: u32) -> Range<u32> {
        todo!()
    }
}

impl Pages<'_> {
    /// The numbers, each checked against the `items` of its group.
    ///
    /// # Errors
    /// The first number outside `0..items`.
    pub fn checked(&self, _items: u32) -> Result<Vec<u32>, PagesError> {
        todo!()
    }
}
