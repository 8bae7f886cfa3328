//! Copies from a peer's memory on this host into ours.

use super::cursor::Cursor;
use super::import::{Import, Imports, Run};
use super::table::{Regions, Resolver};
use super::{MemoryError, stream};
use crate::ids::RegionId;
use crate::layout::Extent;
use std::io;

/// How a peer's own memory is read: by its process number, which the kernel vouched for. A number that the
/// peer keeps at an address of its own is read in each call and shows that it is still the same memory: not
/// that of another program, nor of another process that got the number after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) token: u128,
    pub(crate) token_at: u64,
}

/// What is left of a list that bytes come from.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(crate) imports: &'a Imports,
    pub(crate) process: Option<Process>,
    pub(crate) extents: &'a [Extent],
    pub(crate) cursor: Cursor,
}

/// What is left of a list that bytes go to.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub(crate) regions: &'a Regions,
    pub(crate) extents: &'a [Extent],
    pub(crate) cursor: Cursor,
}

/// Why bytes did not come.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// An extent of the peer's is not in a region of its.
    #[error("of the peer: {0}")]
    Theirs(MemoryError),
    /// An extent of ours is not in a region of ours.
    #[error(transparent)]
    Ours(MemoryError),
    /// The peer's memory cannot be read, or not any more.
    #[error("process_vm_readv: {0}")]
    Unreadable(io::Error),
}

/// Vectors of one thread, reused from call to call.
#[derive(Debug, Default)]
pub(crate) struct Fetcher {
    runs: Vec<Piece>,
    local: Vec<libc::iovec>,
    remote: Vec<libc::iovec>,
}

// SAFETY: the lists hold addresses only inside `fetch`, which empties them before it returns.
unsafe impl Send for Fetcher {}

impl Fetcher {
    /// Moves at most `limit` bytes, and both cursors by what was moved: the smallest of the three. `way`
    /// says whether what is written should stay in the cache.
    ///
    /// # Errors
    /// Some bytes may have been moved; the cursors say nothing then.
    pub(crate) fn fetch(
        &mut self,
        from: &mut Source<'_>,
        to: &mut Target<'_>,
        limit: u64,
        way: Way,
    ) -> Result<u64, FetchError> {
        self.clear();
        let fetched = self.walk(from, to, limit, way);
        stream::finish();
        self.clear();
        fetched
    }

    fn walk(
        &mut self,
        from: &mut Source<'_>,
        to: &mut Target<'_>,
        limit: u64,
        way: Way,
    ) -> Result<u64, FetchError> {
        let mut resolver = Resolver::new(to.regions);
        let mut last: Option<(RegionId, &Import)> = None;
        let mut left = limit;
        while left > 0 {
            let (Some(source), Some(target)) =
                (from.cursor.current(from.extents), to.cursor.current(to.extents))
            else {
                break;
            };
            let len = (source.len - from.cursor.offset).min(target.len - to.cursor.offset).min(left);
            let import = match last {
                Some((id, import)) if id == source.region => import,
                _ => from.imports.find(source.region).map_err(FetchError::Theirs)?,
            };
            last = Some((source.region, import));
            let run = import.run(source, from.cursor.offset).map_err(FetchError::Theirs)?;
            let span = resolver.span(target, to.cursor.offset, len).map_err(FetchError::Ours)?;
            match run {
                Run::Mapped(start) => {
                    self.runs.push(Piece { to: span.start, from: start, len: span.len });
                    if self.runs.len() >= RUNS_AT_ONCE {
                        self.copy(way);
                    }
                }
                Run::Remote(address) => self.gather(from.process, address, span.start, span.len)?,
            }
            from.cursor.step(source, len);
            to.cursor.step(target, len);
            left -= len;
        }
        self.copy(way);
        self.flush(from.process)?;
        Ok(limit - left)
    }

    /// Copies the runs that were noted.
    fn copy(&mut self, way: Way) {
        // SAFETY: in `walk`, `run` checked each source against a mapping that `imports` keeps, and `span` each
        // target against a region that its snapshot keeps; both are as long as the run.
        unsafe { stream::copy(&self.runs, way) };
        self.runs.clear();
    }

    /// Notes a run that the kernel is to copy; has it copy when there are many.
    fn gather(
        &mut self,
        process: Option<Process>,
        address: u64,
        start: *mut u8,
        len: usize,
    ) -> Result<(), FetchError> {
        self.local.push(libc::iovec { iov_base: start.cast(), iov_len: len });
        self.remote.push(remote(address, len));
        if self.local.len() < MAX_RUNS { Ok(()) } else { self.flush(process) }
    }

    fn flush(&mut self, process: Option<Process>) -> Result<(), FetchError> {
        if self.local.is_empty() {
            return Ok(());
        }
        let unreadable = |code| FetchError::Unreadable(io::Error::from_raw_os_error(code));
        let process = process.ok_or_else(|| unreadable(libc::EPERM))?;
        let mut token = [0_u8; TOKEN_BYTES];
        self.local.push(libc::iovec { iov_base: token.as_mut_ptr().cast(), iov_len: TOKEN_BYTES });
        self.remote.push(remote(process.token_at, TOKEN_BYTES));
        let wanted: usize = self.local.iter().map(|vector| vector.iov_len).sum();
        let read = self.read(process.pid);
        self.clear();
        match usize::try_from(read) {
            Err(_) => Err(FetchError::Unreadable(io::Error::last_os_error())),
            Ok(read) if read < wanted => Err(unreadable(libc::EFAULT)),
            Ok(_) if u128::from_le_bytes(token) != process.token => Err(unreadable(libc::ESRCH)),
            Ok(_) => Ok(()),
        }
    }

    fn read(&self, pid: i32) -> isize {
        let Self { local, remote, .. } = self;
        let counts = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
        // SAFETY: the local vectors are checked spans of regions kept by a snapshot of the caller of `walk`,
        // and the token's bytes; the kernel checks the remote ones against the memory of that process.
        unsafe { libc::process_vm_readv(pid, local.as_ptr(), counts.0, remote.as_ptr(), counts.1, 0) }
    }

    fn clear(&mut self) {
        self.runs.clear();
        self.local.clear();
        self.remote.clear();
    }
}

impl Process {
    /// Whether its memory can be read.
    pub(crate) fn probe(&self) -> io::Result<()> {
        let mut found = [0_u8; TOKEN_BYTES];
        let local = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: TOKEN_BYTES };
        let remote = remote(self.token_at, TOKEN_BYTES);
        // SAFETY: the local vector is `found`; the kernel checks the remote one.
        let read = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(read) {
            Err(_) => Err(io::Error::last_os_error()),
            Ok(TOKEN_BYTES) if u128::from_le_bytes(found) == self.token => Ok(()),
            Ok(_) => Err(io::Error::other("another process answers to its number here")),
        }
    }
}

fn remote(address: u64, len: usize) -> libc::iovec {
    // An address of another process: only the kernel makes anything of it.
    let address = usize::try_from(address).unwrap_or(0);
    libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: len }
}

use stream::Piece;
pub(crate) use stream::Way;

const TOKEN_BYTES: usize = size_of::<u128>();
/// Mapped runs that are noted before they are copied.
const RUNS_AT_ONCE: usize = 64;
/// Runs of one call: one less than the kernel takes, for the token.
const MAX_RUNS: usize = 1023;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{HostBuffer, RegionTable, SharedBuffer};
    use std::os::fd::AsFd;

    fn extents(region: u32, list: &[(u64, u64)]) -> Vec<Extent> {
        list.iter().map(|&(offset, len)| Extent { region: RegionId(region), offset, len }).collect()
    }

    fn own(token: &u128) -> Process {
        let token_at = std::ptr::from_ref(token) as u64;
        Process { pid: i32::try_from(std::process::id()).unwrap(), token: u128::from_le(*token), token_at }
    }

    /// A peer with one region mapped and one only readable, of the same bytes.
    fn peer(bytes: &[u8]) -> (SharedBuffer, HostBuffer, Imports) {
        let shared = SharedBuffer::zeroed(bytes.len() as u64).unwrap();
        let private = HostBuffer::zeroed(bytes.len() as u64).unwrap();
        shared.write_at(0, bytes);
        private.write_at(0, bytes);
        let fd = shared.as_fd().try_clone_to_owned().unwrap();
        let mut imports = Imports::default();
        imports.insert(RegionId(0), Import::mapped(&fd, 0, shared.len()).unwrap());
        let address = private.base().as_ptr() as u64;
        imports.insert(RegionId(1), Import::remote(address, private.len()).unwrap());
        (shared, private, imports)
    }

    #[test]
    fn differently_cut_lists_arrive_exactly_in_any_steps_and_ways() {
        let bytes: Vec<u8> = (0..=250).cycle().take(1 << 16).collect();
        let (_shared, _private, imports) = peer(&bytes);
        let token = 99_u128;
        let mixed = [extents(0, &[(10, 3000), (5000, 1)]), extents(1, &[(300, 99), (9000, 5000)])].concat();
        let wanted = [&bytes[10..3010], &bytes[5000..5001], &bytes[300..399], &bytes[9000..14_000]].concat();
        for way in [Way::Cached, Way::Around] {
            for step in [1, 300, 4096, 1 << 20] {
                let target = HostBuffer::zeroed(1 << 16).unwrap();
                let table = RegionTable::default();
                table.insert(target.region(RegionId(7)));
                let regions = table.snapshot();
                let list = extents(7, &[(1, 77), (1000, 4000), (0x8000, 4023)]);
                let mut from = Source {
                    imports: &imports,
                    process: Some(own(&token)),
                    extents: &mixed,
                    cursor: Cursor::default(),
                };
                let mut to = Target { regions: &regions, extents: &list, cursor: Cursor::default() };
                let mut fetcher = Fetcher::default();
                let mut total = 0;
                while total < 8100 {
                    let fetched = fetcher.fetch(&mut from, &mut to, step, way).unwrap();
                    assert!(fetched > 0 && fetched <= step);
                    total += fetched;
                }
                assert_eq!(fetcher.fetch(&mut from, &mut to, step, way).unwrap(), 0);
                let landed =
                    [target.to_vec(1, 77), target.to_vec(1000, 4000), target.to_vec(0x8000, 4023)].concat();
                assert!(landed == wanted, "step {step} {way:?}");
                assert_eq!(target.to_vec(78, 922), vec![0; 922]);
            }
        }
    }

    #[test]
    fn memory_of_another_program_is_not_taken_for_the_peers() {
        let (_shared, _private, imports) = peer(&[7; 4096]);
        let (token, other) = (99_u128, 98_u128);
        let target = HostBuffer::zeroed(4096).unwrap();
        let table = RegionTable::default();
        table.insert(target.region(RegionId(7)));
        let regions = table.snapshot();
        let (theirs, ours) = (extents(1, &[(0, 100)]), extents(7, &[(0, 100)]));
        let gone = Process { token_at: 4096, ..own(&token) };
        for process in [None, Some(Process { token: other, ..own(&token) }), Some(gone)] {
            let mut from = Source { imports: &imports, process, extents: &theirs, cursor: Cursor::default() };
            let mut to = Target { regions: &regions, extents: &ours, cursor: Cursor::default() };
            let failed = Fetcher::default().fetch(&mut from, &mut to, 100, Way::Cached);
            assert!(matches!(failed, Err(FetchError::Unreadable(_))), "{failed:?}");
            assert!(process.is_none_or(|process| process.probe().is_err()));
        }
        assert!(own(&token).probe().is_ok());
    }

    #[test]
    fn more_runs_than_one_call_takes_arrive() {
        let bytes: Vec<u8> = (0..=250).cycle().take(1 << 16).collect();
        let (_shared, _private, imports) = peer(&bytes);
        let token = 5_u128;
        let places: Vec<_> = (0..3000).map(|at| (at * 20, 9)).collect();
        let (theirs, ours) = (extents(1, &places), extents(7, &[(0, 27_000)]));
        let target = HostBuffer::zeroed(1 << 16).unwrap();
        let table = RegionTable::default();
        table.insert(target.region(RegionId(7)));
        let regions = table.snapshot();
        let process = Some(own(&token));
        let mut from = Source { imports: &imports, process, extents: &theirs, cursor: Cursor::default() };
        let mut to = Target { regions: &regions, extents: &ours, cursor: Cursor::default() };
        assert_eq!(Fetcher::default().fetch(&mut from, &mut to, 1 << 20, Way::Cached).unwrap(), 27_000);
        let wanted: Vec<u8> = (0..3000).flat_map(|at| bytes[at * 20..][..9].to_vec()).collect();
        assert!(target.to_vec(0, 27_000) == wanted);
    }
}
