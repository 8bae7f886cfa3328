//! Running an example, talking to it and listening to it.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

/// Ends a hung test; nothing waits that long when all is well.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(120);

/// A small cache in chunks: four pages, two chunks.
pub(crate) const SMALL: &[&str] = &["--shape=llama-8b", "--layers=2", "--tokens=64"];

/// A running example. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    input: ChildStdin,
    /// Lines of standard output and of standard error, as they come; ends with both.
    lines: Receiver<String>,
    heard: Vec<String>,
}

/// What is left of an example that has ended by itself.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) is_success: bool,
    /// All that it printed.
    pub(crate) text: String,
}

impl Program {
    pub(crate) fn prefill(options: &[&str]) -> Self {
        Self::start("prefill", options)
    }

    /// A decode process for the directory at `url`.
    pub(crate) fn decode(url: &str, options: &[&str]) -> Self {
        Self::start("decode", &[&["--directory", url, "--verbose"], options].concat())
    }

    fn start(name: &str, options: &[&str]) -> Self {
        let mut child = Command::new(path(name))
            .args(options)
            .arg("--json")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (found, lines) = mpsc::channel();
        let outputs: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let found = found.clone();
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    // The test may be over.
                    let _ = found.send(line);
                }
            });
        }
        let input = child.stdin.take().unwrap();
        Self { child, input, lines, heard: Vec::new() }
    }

    /// The first line from now on that begins with `start`, without it.
    pub(crate) fn until(&mut self, start: &str) -> String {
        loop {
            match self.lines.recv_timeout(WATCHDOG) {
                Ok(line) => {
                    self.heard.push(line.clone());
                    if let Some(rest) = line.strip_prefix(start) {
                        return rest.to_owned();
                    }
                }
                Err(error) => panic!("{error} while waiting for {start:?} after {:#?}", self.heard),
            }
        }
    }

    /// The URL of the directory that a prefill process has.
    pub(crate) fn url(&mut self) -> String {
        self.until("directory ")
    }

    /// Lets a paused process go on.
    pub(crate) fn resume(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Every TCP address that the process listens on.
    pub(crate) fn listening(&self) -> Vec<SocketAddr> {
        let process = format!("/proc/{}", self.child.id());
        let files = fs::read_dir(format!("{process}/fd")).unwrap();
        let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        let sockets: BTreeSet<String> = links
            .map(|link| link.to_string_lossy().into_owned())
            .filter(|l| l.starts_with("socket:"))
            .collect();
        let table = fs::read_to_string(format!("{process}/net/tcp")).unwrap();
        let listening = table.lines().filter_map(|line| {
            let columns: Vec<_> = line.split_whitespace().collect();
            let (address, state, inode) = (columns.get(1)?, columns.get(3)?, columns.get(9)?);
            let port = u16::from_str_radix(address.strip_prefix("0100007F:")?, 16).ok()?;
            (*state == "0A" && sockets.contains(&format!("socket:[{inode}]")))
                .then(|| SocketAddr::from(([127, 0, 0, 1], port)))
        });
        listening.collect()
    }

    /// Waits until it ends by itself.
    pub(crate) fn end(mut self) -> Ended {
        loop {
            match self.lines.recv_timeout(WATCHDOG) {
                Ok(line) => self.heard.push(line),
                // Both outputs are closed: the process has ended, or is about to.
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(error) => panic!("{error} while waiting for the end after {:#?}", self.heard),
            }
        }
        let is_success = self.child.wait().unwrap().success();
        Ended { is_success, text: self.heard.join("\n") }
    }

    /// Waits for a good end.
    pub(crate) fn succeed(self) -> Value {
        let ended = self.end();
        assert!(ended.is_success, "{}", ended.text);
        ended.summary()
    }
}

impl Ended {
    /// The line of JSON.
    pub(crate) fn summary(&self) -> Value {
        let line = self.text.lines().find(|line| line.starts_with('{'));
        serde_json::from_str(line.unwrap_or_else(|| panic!("no summary in {}", self.text))).unwrap()
    }

    /// The only failed room in the summary of a failed process.
    pub(crate) fn failure(&self) -> Value {
        assert!(!self.is_success, "{}", self.text);
        let summary = self.summary();
        let failed = summary["failed"].as_array().unwrap();
        assert_eq!(failed.len(), 1, "{summary}");
        failed[0].clone()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Nothing can be done about a failure; it may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Examples lie next to the folder of this test's own program.
pub(crate) fn path(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(
        path.exists(),
        "{} is missing: `cargo test` builds it, or `cargo build --examples`",
        path.display()
    );
    path
}
