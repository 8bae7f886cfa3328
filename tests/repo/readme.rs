//! `README.md`: its commands are those that `.ci/run` runs, and its Rust code compiles.

use crate::assert_none;
use crate::source::read;

/// The commands a reader is told to run, by the mark above each.
const COMMANDS: &[&str] = &["test", "demo"];

/// The block of code below `<!-- command: NAME -->`.
fn command(readme: &str, name: &str) -> Option<String> {
    let mark = format!("<!-- command: {name} -->");
    let mut lines = readme.lines().skip_while(|line| *line != mark).skip(1);
    lines.next().filter(|line| line.starts_with("```"))?;
    let command: Vec<&str> = lines.take_while(|line| !line.starts_with("```")).collect();
    Some(command.join("\n")).filter(|command| !command.is_empty())
}

fn breaches(readme: &str, script: &str, name: &str) -> Vec<String> {
    let Some(command) = command(readme, name) else {
        return vec![format!("README.md: no command under <!-- command: {name} -->")];
    };
    let mut found = Vec::new();
    if !script.contains(&format!("readme_command {name})")) {
        found.push(format!(".ci/run: does not take the command {name} from README.md"));
    }
    if script.contains(&command) {
        found.push(format!(".ci/run: repeats the command {name} instead of taking it from README.md"));
    }
    found
}

#[test]
fn ci_runs_the_readme_commands() {
    let (readme, script) = (read("README.md"), read(".ci/run"));
    let found: Vec<String> = COMMANDS.iter().flat_map(|name| breaches(&readme, &script, name)).collect();
    assert_none("README.md and .ci/run", &found);
}

#[test]
fn readme_code_is_compiled_with_the_documentation() {
    let library = read("src/lib.rs");
    let is_included = library.contains("#[doc = include_str!(\"../README.md\")]");
    assert!(is_included, "src/lib.rs does not include README.md for doctests");
}

mod tests {
    use super::*;

    const README: &str = "text\n\n<!-- command: test -->\n```sh\ncargo test\n```\nmore";

    #[test]
    fn command_is_the_block_below_its_mark() {
        assert_eq!(command(README, "test").as_deref(), Some("cargo test"));
        assert_eq!(command(README, "demo"), None);
        assert_eq!(command("<!-- command: test -->\ncargo test", "test"), None);
    }

    #[test]
    fn drift_is_found() {
        assert!(breaches(README, "x=$(readme_command test)", "test").is_empty());
        assert_eq!(breaches(README, "cargo test", "test").len(), 2);
        assert_eq!(breaches(README, "x=$(readme_command test)", "demo").len(), 1);
    }
}
