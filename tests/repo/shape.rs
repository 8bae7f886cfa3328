//! The size of files and the line each begins with.

use crate::assert_none;
use crate::source::{Source, sources};

/// More lines than this fail; more than `WARN_LINES` are shown by `--nocapture`.
const MAX_LINES: usize = 600;
const WARN_LINES: usize = 400;

fn longer_than(limit: usize, source: &Source) -> Option<String> {
    let lines = source.text.lines().count();
    (lines > limit).then(|| format!("{}: {lines} lines, over {limit}", source.path))
}

fn undescribed(source: &Source) -> Option<String> {
    let is_described = source.text.lines().next().is_some_and(|line| line.starts_with("//! "));
    (!is_described).then(|| format!("{}:1", source.path))
}

#[test]
fn files_are_short() {
    let sources = sources();
    for warning in sources.iter().filter_map(|source| longer_than(WARN_LINES, source)) {
        println!("warning: {warning}");
    }
    let found: Vec<String> = sources.iter().filter_map(|source| longer_than(MAX_LINES, source)).collect();
    assert_none("split these by concern", &found);
}

#[test]
fn files_say_what_they_are() {
    let sources = sources();
    let described = sources.iter().filter(|source| source.module().last().is_none_or(|name| name != "tests"));
    let found: Vec<String> = described.filter_map(undescribed).collect();
    assert_none("files that do not begin with `//!`", &found);
}

mod tests {
    use super::*;

    #[test]
    fn long_files_are_found() {
        let long = Source::new("src/x.rs", &"x\n".repeat(MAX_LINES + 1));
        assert!(longer_than(MAX_LINES, &long).is_some());
        let short = Source::new("src/x.rs", &"x\n".repeat(MAX_LINES));
        assert!(longer_than(MAX_LINES, &short).is_none());
        assert!(longer_than(WARN_LINES, &short).is_some());
    }

    #[test]
    fn undescribed_files_are_found() {
        assert!(undescribed(&Source::new("src/x.rs", "use std::fs;\n//! late")).is_some());
        assert!(undescribed(&Source::new("src/x.rs", "")).is_some());
        assert!(undescribed(&Source::new("src/x.rs", "//! Says it.\n")).is_none());
    }
}
