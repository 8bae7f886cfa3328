//! What a plain socket can do: one stream over loopback, from a pool of one process into a pool of another.

#![allow(clippy::disallowed_methods, reason = "an example may read the clock")]

use rustix::net::sockopt::set_tcp_congestion;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The only argument of the other end.
const SOURCE: &str = "--socket-source";
/// Bytes of one call.
const WRITE_BYTES: usize = 1 << 20;

/// The receiving end, and the process at the other one.
#[derive(Debug)]
pub(crate) struct Socket {
    source: Child,
    stream: TcpStream,
    pool: Vec<u8>,
}

impl Socket {
    /// Starts this program as the other end.
    pub(crate) fn start(bytes: usize) -> Result<Self, Box<dyn Error>> {
        let mut source = Command::new(std::env::current_exe()?).arg(SOURCE).stdout(Stdio::piped()).spawn()?;
        let mut port = String::new();
        let output = source.stdout.take().ok_or("the source's output is not piped")?;
        BufReader::new(output).read_line(&mut port)?;
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.trim().parse()?))?;
        stream.write_all(&u64::try_from(bytes)?.to_le_bytes())?;
        Ok(Self { source, stream, pool: vec![1; bytes] })
    }

    /// Copies the pool once; from asking for it to its last byte.
    pub(crate) fn copy(&mut self) -> Result<Duration, Box<dyn Error>> {
        let start = Instant::now();
        self.stream.write_all(b"!")?;
        self.stream.read_exact(&mut self.pool)?;
        Ok(start.elapsed())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // It ends with its connection; killed as well, in case that it does not.
        let _ = self.source.kill();
        let _ = self.source.wait();
    }
}

/// Whether this process is the other end: it then calls [`serve`] and nothing else.
pub(crate) fn is_source() -> bool {
    std::env::args().nth(1).as_deref() == Some(SOURCE)
}

/// The sending end: tells its port and sends its pool each time a byte comes.
pub(crate) fn serve() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    let (mut stream, _) = listener.accept()?;
    // As kvferry's own connections: some machines default to one that paces even loopback.
    set_tcp_congestion(&stream, "cubic")?;
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    let pool = vec![1; usize::try_from(u64::from_le_bytes(bytes))?];
    while stream.read(&mut [0])? == 1 {
        for part in pool.chunks(WRITE_BYTES) {
            stream.write_all(part)?;
        }
    }
    Ok(())
}
