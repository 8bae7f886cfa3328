//! How much memory there may be: asked before a large piece is reserved, since the kernel would rather end
//! a process than refuse pages.

use std::fs;

/// What the kernel says can be had without ending anybody, in bytes; none if it says nothing.
pub(super) fn available() -> Option<u64> {
    let host = fs::read_to_string("/proc/meminfo").ok().and_then(|text| field(&text, "MemAvailable:"));
    let group = read("/sys/fs/cgroup/memory.max").zip(read("/sys/fs/cgroup/memory.current"));
    let group = group.map(|(limit, used)| limit.saturating_sub(used));
    host.into_iter().chain(group).min()
}

/// Bytes of free huge pages of the default size, and that size.
pub(super) fn huge() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let size = field(&text, "Hugepagesize:")?;
    let count =
        |name| Some(text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().unwrap_or(0));
    let free: u64 = count("HugePages_Free:")?;
    let promised: u64 = count("HugePages_Rsvd:")?;
    Some((free.saturating_sub(promised).saturating_mul(size), size))
}

/// The largest file that this process may make, in bytes.
pub(super) fn largest_file() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current
}

/// A line such as `MemFree: 12 kB`, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// A number in a file of its own; none where it says `max`.
fn read(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_in_kilobytes_are_read_in_bytes() {
        let text = "MemTotal:       16 kB\nMemAvailable:    12 kB\nOdd: x kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(12 << 10));
        assert_eq!((field(text, "Odd:"), field(text, "Missing:")), (None, None));
    }
}
