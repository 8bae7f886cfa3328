//! Inputs kept as text: one a line, in hexadecimal; `#` starts a comment.

use std::fs;
use std::path::Path;

pub(crate) fn read(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let path = folder.join(target).with_extension("txt");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().map(|line| line.split('#').next().unwrap().trim());
    lines.filter(|line| !line.is_empty()).map(parse).collect()
}

fn parse(line: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
    (0..line.len()).step_by(2).map(byte).collect()
}

pub(crate) fn print(input: &[u8]) -> String {
    input.iter().map(|byte| format!("{byte:02x}")).collect()
}
