//! Finds every path that starts at the crate's root, at a parent module or at the standard library.

use crate::source::Source;

/// A path as code names it, from the root: `["crate", "ids", "Room"]`, `["std", "net"]`.
#[derive(Debug, PartialEq)]
pub(crate) struct Named {
    pub(crate) line: usize,
    pub(crate) segments: Vec<String>,
}

/// The paths of a file, in order. A glob gives the path before its star; `super` is resolved.
pub(crate) fn paths(source: &Source) -> Vec<Named> {
    let tokens = tokens(&source.code);
    let at = |index: usize| tokens.get(index).map(|token| &token.kind);
    let file_module = source.module();
    // For each open brace, the module that it opens.
    let mut braces: Vec<Option<String>> = Vec::new();
    let mut found = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let before = |count: usize| index.checked_sub(count).and_then(at);
        match &token.kind {
            Kind::Open => braces.push(match (before(2), before(1)) {
                (Some(Kind::Word(keyword)), Some(Kind::Word(name))) if keyword == "mod" => Some(name.clone()),
                _ => None,
            }),
            Kind::Close => {
                braces.pop();
            }
            // `a::std` is not the standard library, and the rest of `super::super` is read with its start.
            Kind::Word(_) if before(1) == Some(&Kind::Separator) && !is_word(before(2), "self") => {}
            Kind::Word(word) if word == "super" => {
                let mut module = vec!["crate".to_owned()];
                module.extend(file_module.iter().chain(braces.iter().flatten()).cloned());
                Walk { tokens: &tokens, at: index, found: &mut found }.parents(module);
            }
            Kind::Word(word)
                if (word == "crate" || word == "std") && at(index + 1) == Some(&Kind::Separator) =>
            {
                Walk { tokens: &tokens, at: index + 2, found: &mut found }.tree(vec![word.clone()]);
            }
            _ => {}
        }
    }
    found
}

fn is_word(kind: Option<&Kind>, expected: &str) -> bool {
    matches!(kind, Some(Kind::Word(word)) if word == expected)
}

struct Walk<'a> {
    tokens: &'a [Token],
    at: usize,
    found: &'a mut Vec<Named>,
}

impl Walk<'_> {
    /// Reads `super::super::…`, where `module` is the module that the code stands in.
    fn parents(&mut self, mut module: Vec<String>) {
        while self.word() == Some("super") {
            module.truncate((module.len() - 1).max(1));
            self.at += 1;
            if self.kind() != Some(&Kind::Separator) {
                // `pub(super)`: a visibility, not a path.
                return;
            }
            self.at += 1;
        }
        self.tree(module);
    }

    /// Reads what may follow `prefix::`.
    fn tree(&mut self, mut prefix: Vec<String>) {
        let Some(line) = self.tokens.get(self.at).map(|token| token.line) else { return };
        while let Some(word) = self.word().map(str::to_owned) {
            self.at += 1;
            if word != "self" {
                prefix.push(word);
            }
            if self.kind() != Some(&Kind::Separator) {
                self.found.push(Named { line, segments: prefix });
                return;
            }
            self.at += 1;
        }
        if self.kind() == Some(&Kind::Open) {
            self.at += 1;
            while !matches!(self.kind(), None | Some(Kind::Close)) {
                match self.kind() {
                    Some(Kind::Word(word)) if word == "as" => self.at += 2,
                    Some(Kind::Word(_) | Kind::Open | Kind::Star) => self.tree(prefix.clone()),
                    _ => self.at += 1,
                }
            }
        } else {
            self.found.push(Named { line, segments: prefix });
        }
        // The star, or the brace that closes a group.
        self.at += 1;
    }

    fn kind(&self) -> Option<&Kind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn word(&self) -> Option<&str> {
        match self.kind() {
            Some(Kind::Word(word)) => Some(word),
            _ => None,
        }
    }
}

struct Token {
    line: usize,
    kind: Kind,
}

#[derive(Debug, PartialEq)]
enum Kind {
    Close,
    Open,
    Other,
    Separator,
    Star,
    Word(String),
}

fn tokens(code: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (index, text) in code.lines().enumerate() {
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            let (kind, length) = match first {
                c if is_part(c) => {
                    let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                    (Kind::Word(rest[..length].to_owned()), length)
                }
                '{' => (Kind::Open, 1),
                '}' => (Kind::Close, 1),
                '*' => (Kind::Star, 1),
                ':' if rest.starts_with("::") => (Kind::Separator, 2),
                c => (Kind::Other, c.len_utf8()),
            };
            tokens.push(Token { line: index + 1, kind });
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        paths(&Source::new(path, text))
            .iter()
            .map(|p| format!("{} {}", p.line, p.segments.join("::")))
            .collect()
    }

    #[test]
    fn nested_groups_are_read() {
        let text = "use crate::{\n    a::{self, b::*, c as d},\n    e,\n};\nuse {crate::f, std::net};\n";
        let expected =
            ["2 crate::a", "2 crate::a::b", "2 crate::a::c", "3 crate::e", "5 crate::f", "5 std::net"];
        assert_eq!(found("src/x.rs", text), expected);
    }

    #[test]
    fn paths_inside_code_are_read() {
        let text =
            "fn f(x: crate::a::B) -> u8 { crate::c::d::<u8>(x); other::std::e() }\npub(crate) struct S;";
        assert_eq!(found("src/x.rs", text), ["1 crate::a::B", "1 crate::c::d"]);
    }

    #[test]
    fn parents_are_resolved() {
        let text = "use super::super::engine::Engine;\nuse super::{stream, shm::x};\nuse self::super::y;\n\
                    pub(super) fn f() {}\nmod tests { use super::*; use super::super::z; }";
        let expected = [
            "1 crate::engine::Engine",
            "2 crate::transport::stream",
            "2 crate::transport::shm::x",
            "3 crate::transport::y",
            "5 crate::transport::tcp",
            "5 crate::transport::z",
        ];
        assert_eq!(found("src/transport/tcp/mod.rs", text), expected);
    }

    #[test]
    fn comments_and_literals_name_nothing() {
        assert!(found("src/x.rs", "/// [`A`](crate::a::A)\nconst A: &str = \"crate::a\";").is_empty());
    }
}
