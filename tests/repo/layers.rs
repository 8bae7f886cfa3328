//! Who may import whom.

use std::collections::BTreeMap;

use crate::assert_none;
use crate::paths::{Named, paths};
use crate::source::{Source, read, sources};

/// The base: each may import the others, and every layer may import each of them.
const BASE: &[&str] =
    &["address", "checksum", "config", "doorbell", "error", "home", "ids", "ops", "poll", "sync"];

/// The layers from the lowest up, with what each may import besides the base and itself.
const LAYERS: &[(&str, May)] = &[
    ("layout", May::Import(&[])),
    ("wire", May::Import(&[All("layout")])),
    ("session", May::Import(&[All("layout"), All("wire")])),
    ("memory", May::Import(&[Items("layout", &["Extent"])])),
    ("transport", May::Import(&[All("layout"), All("wire"), All("memory")])),
    ("bootstrap", May::Import(&[Items("layout", &["LayoutDigest", "digest"])])),
    (
        "engine",
        May::Import(&[
            All("layout"),
            All("wire"),
            All("session"),
            All("memory"),
            All("transport"),
            All("bootstrap"),
        ]),
    ),
    ("faults", May::Import(&[All("layout"), All("wire"), All("memory"), All("transport")])),
    ("sim", May::Import(&[All("layout"), All("wire"), All("session")])),
    ("ffi", May::ImportPublic),
];

/// Children of `transport` that never import each other.
const TRANSPORTS: &[&str] = &["local", "shm", "tcp", "ucx"];

/// Parts of the standard library that a layer has no business with.
const NOT_STD: &[(&str, &[&str])] = &[
    ("layout", &["fs", "net", "process", "thread", "time"]),
    ("wire", &["fs", "net", "process", "thread", "time"]),
    ("session", &["fs", "net", "process", "thread"]),
];

enum May {
    Import(&'static [Import]),
    /// What a user of the crate can name.
    ImportPublic,
}

use Import::{All, Items};

enum Import {
    All(&'static str),
    /// These items alone.
    Items(&'static str, &'static [&'static str]),
}

/// What `lib.rs` says about the crate's root.
struct Root {
    /// The module that each re-exported name comes from.
    exports: BTreeMap<String, String>,
    public_modules: Vec<String>,
}

impl Root {
    fn read(text: &str) -> Self {
        let source = Source::new("src/lib.rs", text);
        let words = source.code.split_whitespace().collect::<Vec<_>>();
        let public = words.windows(3).filter(|w| w[0] == "pub" && w[1] == "mod");
        let public_modules = public.map(|w| w[2].trim_end_matches(';').to_owned()).collect();
        // `pub use ids::{A, B};` names its module from the root, as `crate::ids::{A, B}` would.
        let uses = source.code.replace("pub use crate::", "pub use ").replace("pub use ", "pub use crate::");
        let exports = paths(&Source::new("src/lib.rs", &uses))
            .into_iter()
            .filter(|named| named.segments.len() > 2)
            .map(|mut named| (named.segments.pop().expect("longer than two"), named.segments.swap_remove(1)))
            .collect();
        Self { exports, public_modules }
    }
}

fn breaches(source: &Source, root: &Root) -> Vec<String> {
    let module = source.module();
    // The crate's root names every layer.
    let Some(layer) = module.first() else { return Vec::new() };
    if !is_known(layer) {
        return vec![format!("{}: module `{layer}` is missing in the table of layers", source.path)];
    }
    let said = |named: Named| {
        let reason = refuse(&module, &named.segments, root)?;
        Some(format!("{}:{}: {}: {reason}", source.path, named.line, named.segments.join("::")))
    };
    paths(source).into_iter().filter_map(said).collect()
}

/// Why `module` may not name `path`; `None` when it may.
fn refuse(module: &[String], path: &[String], root: &Root) -> Option<String> {
    let layer = module[0].as_str();
    let Some(target) = path.get(1).map(String::as_str) else {
        return Some("a glob of the crate's root hides what is imported".into());
    };
    if path[0] == "std" {
        let denied = NOT_STD.iter().any(|(name, parts)| *name == layer && parts.contains(&target));
        return denied.then(|| format!("`{layer}` does not use std::{target}"));
    }
    let may = LAYERS.iter().find(|(name, _)| *name == layer).map(|(_, may)| may);
    if matches!(may, Some(May::ImportPublic)) && target != layer {
        let is_public = root.exports.contains_key(target) || root.public_modules.iter().any(|m| m == target);
        return (!is_public).then(|| format!("`{layer}` uses the public API only"));
    }
    if let Some(home) = root.exports.get(target).filter(|_| !is_known(target)) {
        return Some(format!("import it from `crate::{home}`"));
    }
    if !is_known(target) {
        return Some(format!("`{target}` is missing in the table of layers"));
    }
    if target == layer {
        let other_transport = layer == "transport"
            && matches!((module.get(1), path.get(2)), (Some(own), Some(other)) if own != other
                && [own, other].iter().all(|name| TRANSPORTS.contains(&name.as_str())));
        return other_transport.then(|| "a transport does not import another".into());
    }
    if BASE.contains(&target) {
        return None;
    }
    let imports = match may {
        Some(May::Import(imports)) => *imports,
        _ => &[],
    };
    let allowed = imports.iter().any(|import| match import {
        All(name) => *name == target,
        Items(name, items) => {
            *name == target && path.get(2).is_some_and(|item| items.contains(&item.as_str()))
        }
    });
    (!allowed).then(|| format!("`{layer}` does not import this from `{target}`"))
}

fn is_known(module: &str) -> bool {
    BASE.contains(&module) || LAYERS.iter().any(|(name, _)| *name == module)
}

#[test]
fn imports_go_down_only() {
    let root = Root::read(&read("src/lib.rs"));
    let found: Vec<String> = sources().iter().flat_map(|source| breaches(source, &root)).collect();
    assert_none("imports against the table of layers", &found);
}

#[test]
fn table_has_no_upward_edge() {
    for (place, (name, may)) in LAYERS.iter().enumerate() {
        let May::Import(imports) = may else { continue };
        for import in *imports {
            let (All(target) | Items(target, _)) = import;
            let is_lower = LAYERS[..place].iter().any(|(lower, _)| lower == target);
            assert!(is_lower, "`{name}` imports `{target}`, which is not below it");
        }
    }
}

mod tests {
    use super::*;

    const LIB: &str = "pub mod layout;\nmod engine;\nmod ids;\npub use ids::{\n    Rank,\n    Room as R,\n};";

    fn count(path: &str, text: &str) -> usize {
        breaches(&Source::new(path, text), &Root::read(LIB)).len()
    }

    #[test]
    fn wrong_imports_are_found() {
        let wrong = [
            ("src/ids.rs", "use crate::layout::Piece;"),
            ("src/layout/plan.rs", "use crate::wire::Frame;"),
            ("src/layout/plan.rs", "use super::super::wire::Frame;"),
            ("src/layout/plan.rs", "use std::{cmp, net::TcpStream};"),
            ("src/layout/plan.rs", "use crate::Rank;"),
            ("src/layout/plan.rs", "use crate::*;"),
            ("src/layout/plan.rs", "use crate::unheard::Of;"),
            ("src/session/mod.rs", "use crate::{ids, layout::{self, Piece}, engine::{Engine}};"),
            ("src/memory/host.rs", "use crate::layout::{Extent, Piece};"),
            ("src/memory/host.rs", "use crate::layout;"),
            ("src/memory/host.rs", "fn f() { crate::transport::tcp::g() }"),
            ("src/transport/tcp/mod.rs", "mod tests { use super::super::super::shm::X; }"),
            ("src/transport/tcp/lane.rs", "use crate::transport::local::X;"),
            ("src/bootstrap/server.rs", "use crate::wire::codec::Reader;"),
            ("src/engine/mod.rs", "use crate::ffi::guard;"),
            ("src/sim/net.rs", "use crate::transport::Transport;"),
            ("src/faults/relay.rs", "use crate::engine::Engine;"),
            ("src/ffi/mod.rs", "use crate::engine::drive;"),
            ("src/unheard.rs", ""),
        ];
        for (path, text) in wrong {
            assert_eq!(count(path, text), 1, "{path}: {text}");
        }
    }

    #[test]
    fn right_imports_pass() {
        let right = [
            ("src/error.rs", "use crate::ids::Room;"),
            ("src/wire/mod.rs", "use crate::layout::{PageList, Share};"),
            ("src/wire/mod.rs", "mod tests { use super::*; }"),
            ("src/session/mod.rs", "use std::time::Instant;"),
            ("src/memory/mod.rs", "use crate::layout::Extent;"),
            ("src/transport/tcp/lane.rs", "use super::super::Transport;\nuse super::stream;"),
            ("src/bootstrap/mod.rs", "use crate::layout::LayoutDigest;"),
            ("src/ffi/mod.rs", "use crate::{Rank, layout::PoolLayout};"),
        ];
        for (path, text) in right {
            assert_eq!(count(path, text), 0, "{path}: {text}");
        }
    }
}
