//! The engine's own pools as it has announced them, and checks of page lists against them.

use super::usage::UsageError;
use crate::ids::GroupId;
use crate::layout::{GroupKind, Holding, PageGroup, PageList, Pages, PoolLayout, TokenShard};
use std::ops::Range;
use std::sync::Arc;

/// Pools as peers know them.
#[derive(Debug)]
pub(super) struct Announced {
    pub(super) epoch: u32,
    pub(super) layout: Arc<PoolLayout>,
    /// What of each request these pools hold.
    pub(super) holding: Holding,
}

/// Pages of one group, as a caller gives them.
#[derive(Clone, Debug)]
pub(super) struct GroupPages<'a> {
    pub(super) group: GroupId,
    /// Token at the start of the first page; by default the page that holds the first token.
    pub(super) first: Option<u32>,
    pub(super) pages: Pages<'a>,
}

impl Announced {
    pub(super) fn new(epoch: u32, layout: PoolLayout, tokens: TokenShard) -> Self {
        Self { epoch, holding: layout.holding(tokens), layout: Arc::new(layout) }
    }

    /// The same for a room whose tokens are dealt out so.
    pub(super) fn dealt(self: Arc<Self>, tokens: TokenShard) -> Arc<Self> {
        if self.holding.tokens == tokens {
            return self;
        }
        let Self { epoch, layout, holding } = &*self;
        let holding = holding.clone().tokens(tokens);
        Arc::new(Self { epoch: *epoch, layout: Arc::clone(layout), holding })
    }

    /// The pages of a paged group, which must hold `tokens`, as far as this rank does; a list with a start of its own (a window)
    /// need only hold them from there on.
    pub(super) fn pages(&self, given: &GroupPages<'_>, tokens: &Range<u32>) -> Result<PageList, UsageError> {
        let group = given.group;
        let (found, page_tokens) = match self.layout.group_of(group) {
            Some(found @ PageGroup { kind: GroupKind::Paged { page_tokens }, .. }) => (found, *page_tokens),
            _ => return Err(UsageError::UnknownGroup { group, wanted: "paged" }),
        };
        // Pages count what this rank holds.
        let tokens = self.holding.tokens.held(tokens);
        let first = given.first.unwrap_or(tokens.start - tokens.start % page_tokens);
        if !first.is_multiple_of(page_tokens) {
            return Err(UsageError::PagesNotAligned { group, first, page_tokens });
        }
        let list = PageList::new(first, checked(group, &given.pages, found.items)?);
        let (covered, wanted) = (list.covers(page_tokens), tokens.start.max(first)..tokens.end);
        if !wanted.is_empty() && (covered.start > wanted.start || covered.end < wanted.end) {
            return Err(UsageError::PagesDoNotCover { group, covered, wanted });
        }
        Ok(list)
    }

    /// The rows of a row group.
    pub(super) fn rows(&self, group: GroupId, rows: &Pages<'_>) -> Result<PageList, UsageError> {
        match self.layout.group_of(group) {
            Some(PageGroup { kind: GroupKind::Rows, items, .. }) => {
                Ok(PageList::new(0, checked(group, rows, *items)?))
            }
            _ => Err(UsageError::UnknownGroup { group, wanted: "row" }),
        }
    }
}

fn checked(group: GroupId, pages: &Pages<'_>, items: u32) -> Result<Vec<u32>, UsageError> {
    pages.checked(items).map_err(|error| UsageError::PageOutOfRange { group, error })
}
