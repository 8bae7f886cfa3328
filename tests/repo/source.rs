//! The files that the rules read, and their code without comments, literals and tests.

use std::fs;
use std::path::{Path, PathBuf};

/// One file of `src`.
pub(crate) struct Source {
    /// From the repository's root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text with comments and literals blanked; lines keep their places.
    pub(crate) code: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned(), code: blank_literals(text) }
    }

    /// The module's path from the crate's root; empty for `lib.rs`.
    pub(crate) fn module(&self) -> Vec<String> {
        let inner = self.path.strip_prefix("src/").unwrap_or(&self.path);
        let inner = inner.strip_suffix(".rs").unwrap_or(inner);
        let mut module: Vec<String> = inner.split('/').map(str::to_owned).collect();
        if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
            module.pop();
        }
        module
    }

    /// The code without what only tests compile.
    pub(crate) fn product_code(&self) -> String {
        let is_test_file = self.module().iter().any(|name| name == "tests");
        if is_test_file { String::new() } else { blank_tests(&self.code) }
    }

    /// `path:line` for each line of `code` that holds `word` as a whole word.
    pub(crate) fn places(&self, code: &str, word: &str) -> Vec<String> {
        let hits = code.lines().enumerate().filter(|(_, line)| holds_word(line, word));
        hits.map(|(index, _)| format!("{}:{}", self.path, index + 1)).collect()
    }
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of a file, by its path from the repository's root.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every Rust file of `src`, sorted by path.
pub(crate) fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    collect(&root().join("src"), &mut found);
    found.sort();
    let relative = |path: &PathBuf| {
        let path = path.strip_prefix(root()).expect("found below the root");
        path.to_str().expect("paths here are ASCII").replace('\\', "/")
    };
    let sources: Vec<Source> =
        found.iter().map(relative).map(|path| Source::new(&path, &read(&path))).collect();
    assert!(!sources.is_empty(), "no file found in src");
    sources
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn holds_word(line: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(start, _)| {
        !is_part(line[..start].chars().next_back()) && !is_part(line[start + word.len()..].chars().next())
    })
}

/// Replaces comments, strings and characters by spaces.
fn blank_literals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end > at {
            code.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        } else {
            code.push(chars[at]);
            at += 1;
        }
    }
    code
}

/// Where the comment or literal that starts at `at` ends; `at` if none starts there.
fn literal_end(chars: &[char], at: usize) -> usize {
    let next = |offset: usize| chars.get(at + offset).copied();
    let starts_word = at == 0 || !(chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    match (chars[at], next(1)) {
        ('/', Some('/')) => position(chars, at, |c| c == '\n'),
        ('/', Some('*')) => block_comment_end(chars, at),
        ('"', _) => quoted_end(chars, at + 1, '"'),
        ('r', Some('"' | '#')) if starts_word => raw_string_end(chars, at),
        ('b' | 'c', Some('r')) if starts_word && matches!(next(2), Some('"' | '#')) => {
            raw_string_end(chars, at + 1)
        }
        // A character, unless it is a lifetime: `'a` without a quote after it.
        ('\'', Some('\\')) => quoted_end(chars, at + 1, '\''),
        ('\'', Some(_)) if next(2) == Some('\'') => at + 3,
        _ => at,
    }
}

fn position(chars: &[char], from: usize, is_end: impl Fn(char) -> bool) -> usize {
    chars[from..].iter().position(|&c| is_end(c)).map_or(chars.len(), |offset| from + offset)
}

fn block_comment_end(chars: &[char], from: usize) -> usize {
    let (mut depth, mut at) = (0, from);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn quoted_end(chars: &[char], mut at: usize, quote: char) -> usize {
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// `at` is the place of the `r`. A raw identifier such as `r#type` is no literal.
fn raw_string_end(chars: &[char], at: usize) -> usize {
    let open = position(chars, at + 1, |c| c != '#');
    if chars.get(open) != Some(&'"') {
        return at;
    }
    let hashes = open - at - 1;
    let closes = |&start: &usize| {
        chars[start] == '"'
            && chars.len() > start + hashes
            && chars[start + 1..=start + hashes].iter().all(|&c| c == '#')
    };
    (open + 1..chars.len()).find(closes).map_or(chars.len(), |start| start + 1 + hashes)
}

/// Blanks each item under `#[cfg(test)]`.
fn blank_tests(code: &str) -> String {
    let mut rest = code;
    let mut product = String::with_capacity(code.len());
    while let Some(start) = rest.find("#[cfg(test)]") {
        let (before, item) = rest.split_at(start);
        product.push_str(before);
        let (blanked, after) = item.split_at(item_end(item));
        product.extend(blanked.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = after;
    }
    product + rest
}

/// The end of the item that `code` starts with: its closing brace, or a semicolon before any brace.
fn item_end(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth <= 1 => return at + 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_keep_their_places() {
        let text = "a // x\n/* y /* z */ x */ b \"x\\\"\n x\" c r#\"x\"x\"# d 'x' '\\'' <'e> br\"x\" r#f";
        let code = blank_literals(text);
        assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", "b", "c", "d", "<'e>", "r#f"]);
        assert_eq!(code.lines().count(), text.lines().count());
    }

    #[test]
    fn product_code_has_no_test_items() {
        let text = "a\n#[cfg(test)]\nmod tests {\n fn t() { x }\n}\nb\n#[cfg(test)]\nuse x;\nc";
        let code = Source::new("src/ids.rs", text).product_code();
        assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(code.lines().count(), text.lines().count());
        assert_eq!(Source::new("src/wire/tests.rs", "x").product_code(), "");
    }

    #[test]
    fn module_follows_from_path() {
        let module = |path| Source::new(path, "").module();
        assert_eq!(module("src/lib.rs"), Vec::<String>::new());
        assert_eq!(module("src/ids.rs"), ["ids"]);
        assert_eq!(module("src/transport/tcp/mod.rs"), ["transport", "tcp"]);
    }

    #[test]
    fn words_are_whole() {
        assert!(holds_word("unsafe {", "unsafe"));
        assert!(!holds_word("#![allow(unsafe_code)]", "unsafe"));
    }
}
