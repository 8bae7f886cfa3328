//! `Cargo.toml` of every member, and what must agree with it.

use crate::assert_none;
use crate::source::read;

/// The lines of one table of a manifest, such as `package`.
fn table<'a>(manifest: &'a str, name: &str) -> Vec<&'a str> {
    let header = format!("[{name}]");
    let lines = manifest.lines().map(str::trim).skip_while(|line| *line != header).skip(1);
    lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.is_empty()).collect()
}

fn value<'a>(manifest: &'a str, name: &str, key: &str) -> Option<&'a str> {
    let pairs = table(manifest, name).into_iter().filter_map(|line| line.split_once('='));
    pairs.map(|(k, v)| (k.trim(), v.trim().trim_matches('"'))).find(|(k, _)| *k == key).map(|(_, v)| v)
}

/// The strings of the workspace's `members`, which may go over several lines.
fn members(manifest: &str) -> Vec<&str> {
    let workspace = manifest.split_once("\nmembers = [").or_else(|| manifest.split_once("members = ["));
    let (_, rest) = workspace.expect("the workspace lists its members");
    let (list, _) = rest.split_once(']').expect("the list is closed");
    list.split('"').skip(1).step_by(2).collect()
}

fn features(manifest: &str) -> Vec<&str> {
    let lines = table(manifest, "features").into_iter().filter(|line| !line.starts_with('#'));
    let keys = lines.filter_map(|line| line.split_once(" = ")).map(|(key, _)| key);
    keys.filter(|key| *key != "default").collect()
}

/// The features that `.ci/run` checks one by one.
fn checked_features(script: &str) -> Vec<&str> {
    let list = script.lines().find_map(|line| line.strip_prefix("features=(")?.strip_suffix(')'));
    list.unwrap_or_default().split_whitespace().collect()
}

fn changelog_breach(version: &str, changelog: &str) -> Option<String> {
    let headings: Vec<&str> = changelog.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    if headings.first() != Some(&"[Unreleased]") {
        return Some("CHANGELOG.md: its first heading is not [Unreleased]".into());
    }
    let newest = headings.get(1)?.trim_start_matches('[').split(']').next()?;
    (newest != version)
        .then(|| format!("CHANGELOG.md: its newest version is {newest}, Cargo.toml has {version}"))
}

fn member_breaches(path: &str, manifest: &str, version: &str) -> Vec<String> {
    let mut found = Vec::new();
    if value(manifest, "lints", "workspace") != Some("true") {
        found.push(format!("{path}: lacks [lints] workspace = true"));
    }
    let own = value(manifest, "package", "version");
    if own != Some(version) {
        found.push(format!("{path}: version {own:?} is not the library's {version}"));
    }
    found
}

#[test]
fn members_share_lints_and_version() {
    let manifest = read("Cargo.toml");
    let version = value(&manifest, "package", "version").expect("a version");
    let path =
        |member: &str| if member == "." { "Cargo.toml".into() } else { format!("{member}/Cargo.toml") };
    let paths: Vec<String> = members(&manifest).into_iter().map(path).collect();
    let found: Vec<String> =
        paths.iter().flat_map(|path| member_breaches(path, &read(path), version)).collect();
    assert_none("members of the workspace", &found);
}

#[test]
fn changelog_has_the_version() {
    let manifest = read("Cargo.toml");
    let version = value(&manifest, "package", "version").expect("a version");
    let found = changelog_breach(version, &read("CHANGELOG.md"));
    assert_none("versions", &found.into_iter().collect::<Vec<_>>());
}

#[test]
fn ci_checks_each_feature() {
    let manifest = read("Cargo.toml");
    assert_eq!(checked_features(&read(".ci/run")), features(&manifest), ".ci/run against Cargo.toml");
}

mod tests {
    use super::*;

    const MANIFEST: &str = "[workspace]\nmembers = [\n  \".\",\n  \"a/b\",\n]\n[package]\nversion = \"0.2.0\"\n\n\
                            [features]\ndefault = [\"x\"]\n## Text = more.\nx = []\ny = [\"x\"]\n[dependencies]\nz = \"1\"";

    #[test]
    fn manifest_is_read() {
        assert_eq!(members(MANIFEST), [".", "a/b"]);
        assert_eq!(features(MANIFEST), ["x", "y"]);
        assert_eq!(value(MANIFEST, "package", "version"), Some("0.2.0"));
        assert_eq!(value(MANIFEST, "package", "z"), None);
        assert_eq!(checked_features("a\nfeatures=(x y)\n"), ["x", "y"]);
    }

    #[test]
    fn member_without_lints_or_with_another_version_is_found() {
        let good = "[package]\nversion = \"0.2.0\"\n[lints]\nworkspace = true";
        assert!(member_breaches("", good, "0.2.0").is_empty());
        assert_eq!(member_breaches("", good, "0.3.0").len(), 1);
        assert_eq!(member_breaches("", MANIFEST, "0.2.0").len(), 1);
    }

    #[test]
    fn stale_changelog_is_found() {
        assert!(changelog_breach("0.1.0", "# Changelog\n## [Unreleased]\n").is_none());
        assert!(changelog_breach("0.1.0", "## [Unreleased]\n## [0.1.0] - 2030-01-01\n").is_none());
        assert!(changelog_breach("0.2.0", "## [Unreleased]\n## [0.1.0] - 2030-01-01\n").is_some());
        assert!(changelog_breach("0.1.0", "## [0.1.0] - 2030-01-01\n").is_some());
    }
}
