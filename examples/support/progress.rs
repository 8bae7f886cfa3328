//! How far the transfers of a round are.

use indicatif::{ProgressBar, ProgressStyle};
use kvferry::Room;

/// A bar on a terminal, or lines if asked for. Gone when dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    is_verbose: bool,
}

impl Progress {
    pub(crate) fn start(bytes: u64, is_verbose: bool) -> Self {
        let style = ProgressStyle::with_template("{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}");
        let bar = if is_verbose { ProgressBar::hidden() } else { ProgressBar::new(bytes) };
        Self { bar: bar.with_style(style.expect("a template without mistakes")), is_verbose }
    }

    /// So many tokens of a room are in place, and so many bytes of all rooms.
    pub(crate) fn reach(&self, room: Room, tokens: u32, bytes: u64) {
        self.bar.set_position(bytes);
        if self.is_verbose {
            eprintln!("decode: room {room}: {tokens} tokens in place");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
