//! Scattered pages of one request.

use super::place;
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

    /// The tokens these pages have room for, cut off at the last number a token can have.
    pub fn covers(&self, page_tokens: u32) -> Range<u32> {
        let pages = u32::try_from(self.indices.len()).unwrap_or(u32::MAX);
        self.first..self.first.saturating_add(pages.saturating_mul(page_tokens))
    }
}

impl Pages<'_> {
    /// The numbers, each checked against the `items` of its group.
    ///
    /// # Errors
    /// The first number outside `0..items`.
    pub fn checked(&self, items: u32) -> Result<Vec<u32>, PagesError> {
        match &self.source {
            PagesSource::I32(numbers) => checked(numbers, items),
            PagesSource::I64(numbers) => checked(numbers, items),
            PagesSource::Range(range) => checked_range(range, items),
            PagesSource::U32(numbers) => checked(numbers, items),
            PagesSource::Usize(numbers) => checked(numbers, items),
        }
    }
}

/// Conversions from what holds page numbers of one integer type.
macro_rules! pages_from {
    ($($number:ty => $variant:ident),*) => {$(
        impl<'a> From<&'a [$number]> for Pages<'a> {
            fn from(numbers: &'a [$number]) -> Self {
                Self { source: PagesSource::$variant(numbers) }
            }
        }

        impl<'a> From<&'a Vec<$number>> for Pages<'a> {
            fn from(numbers: &'a Vec<$number>) -> Self {
                numbers.as_slice().into()
            }
        }

        impl<'a, const N: usize> From<&'a [$number; N]> for Pages<'a> {
            fn from(numbers: &'a [$number; N]) -> Self {
                numbers.as_slice().into()
            }
        }
    )*};
}

pages_from!(i32 => I32, i64 => I64, u32 => U32, usize => Usize);

impl From<Range<u32>> for Pages<'_> {
    fn from(range: Range<u32>) -> Self {
        Self { source: PagesSource::Range(range) }
    }
}

impl<'a> From<&'a PageList> for Pages<'a> {
    fn from(list: &'a PageList) -> Self {
        (&list.indices).into()
    }
}

fn checked<N>(numbers: &[N], items: u32) -> Result<Vec<u32>, PagesError>
where
    N: Copy + TryInto<u32> + TryInto<i128>,
{
    let mut pages = Vec::with_capacity(numbers.len());
    for (at, &number) in numbers.iter().enumerate() {
        match TryInto::<u32>::try_into(number) {
            Ok(page) if page < items => pages.push(page),
            _ => {
                // 128 bits hold every number of the four types.
                let value = number.try_into().unwrap_or(i128::MAX);
                return Err(PagesError { at, value, items });
            }
        }
    }
    Ok(pages)
}

/// Compares the ends before anything is reserved: a range names four billion pages in eight bytes.
fn checked_range(range: &Range<u32>, items: u32) -> Result<Vec<u32>, PagesError> {
    if range.is_empty() || range.end <= items {
        return Ok(range.clone().collect());
    }
    let bad = range.start.max(items);
    Err(PagesError { at: place(bad - range.start), value: bad.into(), items })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_integer_type_gives_the_same_pages() {
        let expected = Ok(vec![3, 0, 7]);
        assert_eq!(Pages::from(&[3_u32, 0, 7]).checked(8), expected);
        assert_eq!(Pages::from(&[3_i32, 0, 7]).checked(8), expected);
        assert_eq!(Pages::from(&vec![3_i64, 0, 7]).checked(8), expected);
        assert_eq!(Pages::from([3_usize, 0, 7].as_slice()).checked(8), expected);
        assert_eq!(Pages::from(5..8).checked(8), Ok(vec![5, 6, 7]));
        assert_eq!(Pages::from(9..9).checked(8), Ok(vec![]));
    }

    #[test]
    fn the_first_number_outside_is_named() {
        let error = |at, value| Err(PagesError { at, value, items: 8 });
        assert_eq!(Pages::from(&[3_u32, 8]).checked(8), error(1, 8));
        assert_eq!(Pages::from(&[-1_i32]).checked(8), error(0, -1));
        assert_eq!(Pages::from(&[0, i64::MIN]).checked(8), error(1, i64::MIN.into()));
        assert_eq!(Pages::from(&[1_i64 << 32]).checked(8), error(0, 1 << 32));
        assert_eq!(Pages::from(6..u32::MAX).checked(8), error(2, 8));
        assert_eq!(Pages::from(10..11).checked(8), error(0, 10));
    }

    #[test]
    fn coverage_ends_at_the_last_number() {
        assert_eq!(PageList::new(32, vec![4, 9]).covers(16), 32..64);
        assert_eq!(PageList::new(u32::MAX - 1, vec![4, 9]).covers(16), u32::MAX - 1..u32::MAX);
        assert_eq!(PageList::new(0, vec![4; 3]).covers(u32::MAX), 0..u32::MAX);
    }
}
