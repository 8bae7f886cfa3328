//! `docs/guarantees.md`: every test it names exists.

use crate::assert_none;
use crate::source::{read, root};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Names written as `suite::test` between backticks.
fn named(page: &str) -> Vec<(&str, &str)> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted.filter_map(|name| name.split_once("::")).filter(|(suite, _)| is_word(suite)).collect()
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase())
}

fn text_below(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder of tests").map(|entry| entry.expect("readable")) {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
            text_below(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("readable"));
        }
    }
}

fn defines(text: &str, test: &str) -> bool {
    text.contains(&format!("fn {test}("))
}

#[test]
fn tests_that_guarantees_name_exist() {
    let page = read("docs/guarantees.md");
    let names = named(&page);
    assert!(names.len() > 50, "only {} tests are named", names.len());
    let mut suites: BTreeMap<&str, String> = BTreeMap::new();
    let mut missing = Vec::new();
    for (suite, test) in names {
        let text = suites.entry(suite).or_insert_with(|| {
            let mut text = String::new();
            text_below(&root().join("tests").join(suite), &mut text);
            text
        });
        if !defines(text, test) {
            missing.push(format!("{suite}::{test}"));
        }
    }
    assert_none("docs/guarantees.md names tests that do not exist", &missing);
}

mod tests {
    use super::*;

    #[test]
    fn names_are_found_between_backticks() {
        assert_eq!(named("a `x::y` b `Stats::z` c `plain` `u::v`"), [("x", "y"), ("u", "v")]);
        assert!(defines("fn y() {}", "y") && !defines("fn yy() {}", "y"));
    }
}
