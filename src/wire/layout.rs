//! Bodies that describe pools and page lists.
