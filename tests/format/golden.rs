//! The golden files: hexadecimal, 16 bytes a line, `#` starts a comment.

use std::path::PathBuf;
use std::{env, fs};

/// The bytes of every golden file by name, sorted.
pub(crate) fn all() -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let names = names.iter().map(|name| name.strip_suffix(".hex").unwrap().to_owned());
    names.map(|name| (name.clone(), parse(&fs::read_to_string(path(&name)).unwrap()))).collect()
}

/// The bytes of one golden file; with `KVF_BLESS` set, it is written first.
#[allow(dead_code, reason = "only the library's own tests can make the values")]
pub(crate) fn blessed(name: &str, encoded: &[u8], comment: &str) -> Vec<u8> {
    if env::var_os("KVF_BLESS").is_some() {
        fs::write(path(name), print(encoded, comment)).unwrap();
    }
    let text = fs::read_to_string(path(name));
    parse(&text.unwrap_or_else(|error| panic!("{name}.hex: {error}; KVF_BLESS=1 writes it")))
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/format/golden")
}

fn path(name: &str) -> PathBuf {
    folder().join(name).with_extension("hex")
}

fn parse(text: &str) -> Vec<u8> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap());
    lines.flat_map(str::split_whitespace).map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn print(bytes: &[u8], comment: &str) -> String {
    let mut text = String::from("#");
    let mut column = 1;
    for word in comment.split(' ') {
        if column + word.len() > 100 {
            text += "\n#";
            column = 1;
        }
        text += " ";
        text += word;
        column += 1 + word.len();
    }
    text += "\n";
    for line in bytes.chunks(16) {
        text += &line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        text += "\n";
    }
    text
}
