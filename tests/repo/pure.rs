//! Where the clock is read and where `unsafe` may stand.

use crate::assert_none;
use crate::source::{Source, sources};

/// Files that may read the clock, and why.
const CLOCK_READERS: &[(&str, &str)] = &[
    ("src/engine/clock.rs", "the engine's only reader; all below it is told the time"),
    ("src/bootstrap/clock.rs", "the directory runs without an engine and has deadlines of its own"),
];

const CLOCK: &[&str] = &["Instant::now", "SystemTime::now"];

/// Folders whose code may hold `unsafe`.
const UNSAFE: &[&str] = &["src/ffi/", "src/memory/", "src/transport/shm/", "src/transport/ucx/"];

/// Layers that decide and touch nothing.
const PURE: &[&str] = &["layout", "session", "wire"];

fn clock_reads(source: &Source) -> Vec<String> {
    if CLOCK_READERS.iter().any(|(path, _)| *path == source.path) {
        return Vec::new();
    }
    let code = source.product_code();
    let mut found: Vec<String> = CLOCK.iter().flat_map(|read| source.places(&code, read)).collect();
    // A method of this name without arguments is that of the clock's types.
    let elapsed = code.lines().enumerate().filter(|(_, line)| line.contains(".elapsed()"));
    found.extend(elapsed.map(|(index, _)| format!("{}:{}", source.path, index + 1)));
    found
}

fn stray_unsafe(source: &Source) -> Vec<String> {
    let is_allowed = UNSAFE.iter().any(|folder| source.path.starts_with(folder));
    if is_allowed { Vec::new() } else { source.places(&source.code, "unsafe") }
}

fn not_forbidden(source: &Source) -> Option<String> {
    let module = source.module();
    let is_root = module.len() == 1 && PURE.contains(&module[0].as_str());
    let forbids = source.code.contains("#![forbid(unsafe_code)]");
    (is_root && !forbids).then(|| format!("{}: lacks #![forbid(unsafe_code)]", source.path))
}

#[test]
fn only_the_clock_files_read_the_clock() {
    let found: Vec<String> = sources().iter().flat_map(clock_reads).collect();
    assert_none("the clock is read outside the files of CLOCK_READERS", &found);
}

#[test]
fn unsafe_stays_on_its_islands() {
    let found: Vec<String> = sources().iter().flat_map(stray_unsafe).collect();
    assert_none("unsafe outside the folders of UNSAFE", &found);
}

#[test]
fn pure_layers_forbid_unsafe() {
    let found: Vec<String> = sources().iter().filter_map(not_forbidden).collect();
    assert_none("pure layers", &found);
}

mod tests {
    use super::*;

    #[test]
    fn clock_reads_are_found() {
        let reads = |path, text| clock_reads(&Source::new(path, text)).len();
        assert_eq!(reads("src/session/mod.rs", "let now = Instant::now();"), 1);
        assert_eq!(reads("src/session/mod.rs", "let now = std::time::SystemTime::now();"), 1);
        assert_eq!(reads("src/session/mod.rs", "if start.elapsed() > limit {}"), 1);
        assert_eq!(reads("src/engine/clock.rs", "Instant::now()"), 0);
        assert_eq!(
            reads("src/session/mod.rs", "// Instant::now\n#[cfg(test)]\nfn f() { Instant::now() }"),
            0
        );
    }

    #[test]
    fn stray_unsafe_is_found() {
        let stray = |path, text| stray_unsafe(&Source::new(path, text)).len();
        assert_eq!(stray("src/transport/tcp/mod.rs", "unsafe { f() }"), 1);
        assert_eq!(stray("src/engine/mod.rs", "unsafe impl Send for X {}"), 1);
        assert_eq!(stray("src/memory/mod.rs", "unsafe { f() }"), 0);
        assert_eq!(stray("src/engine/mod.rs", "// unsafe\n#![deny(unsafe_code)]"), 0);
    }

    #[test]
    fn missing_forbid_is_found() {
        let lacks = |path, text| not_forbidden(&Source::new(path, text)).is_some();
        assert!(lacks("src/wire/mod.rs", "// #![forbid(unsafe_code)]"));
        assert!(lacks("src/session.rs", ""));
        assert!(!lacks("src/wire/mod.rs", "#![forbid(unsafe_code)]"));
        assert!(!lacks("src/wire/codec.rs", ""));
    }
}
