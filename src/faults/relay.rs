//! What a test commands.

use super::edit::{Edit, Editor};
use super::pump;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// A TCP relay on a free port of the loopback interface. Connections are numbered from 0 in the order in
/// which they come; what is commanded of a number may be commanded before it is there.
///
/// Dropping it cuts all connections and ends its threads, within a few seconds whatever its peers do.
///
/// # Examples
/// ```
/// use kvferry::faults::{Direction, Edit, Relay};
/// use std::io::{Read, Write};
/// use std::net::{TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let relay = Relay::new(listener.local_addr()?)?;
/// relay.edit(0, Direction::Forth, 1, Edit::Flip(0x20));
/// let mut near = TcpStream::connect(relay.address())?;
/// let (mut far, _) = listener.accept()?;
/// near.write_all(b"abc")?;
/// let mut bytes = [0; 3];
/// far.read_exact(&mut bytes)?;
/// assert_eq!(&bytes, b"aBc");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// Between two engines: the decode side is told the relay's address in place of the prefill side's.
#[cfg_attr(feature = "tcp", doc = "```")]
#[cfg_attr(not(feature = "tcp"), doc = "```ignore")]
/// use kvferry::faults::Relay;
/// use kvferry::transport::tcp::{TcpConfig, TcpTransport};
/// use kvferry::{Engine, Place};
///
/// let prefill = Engine::builder(Place::alone("p")).transport(TcpTransport::new(TcpConfig::new())?).build()?;
/// let (name, address) = prefill.addresses().swap_remove(0);
/// let target = TcpTransport::decode_address(&address)?.resolve()?[0];
/// let relay = Relay::new(target)?;
/// let through = TcpTransport::encode_address(&relay.address().into())?;
/// let addresses = vec![(name, through.to_vec())]; // for `Source::new`
/// # let _ = addresses;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    address: SocketAddr,
    listener: Arc<TcpListener>,
    acceptor: Option<JoinHandle<()>>,
}

/// Which connections a command concerns.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "one or all")]
pub enum Connections {
    /// All, and those to come.
    All,
    /// The one with this number.
    Nth(usize),
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "a stream has two ways")]
pub enum Direction {
    /// From the side that was connected to, to the one that connected.
    Back,
    /// From the side that connected.
    Forth,
}

/// How a connection is cut.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "TCP has two ways to end")]
pub enum Ending {
    /// In order, as by a process that closes its socket.
    Fin,
    /// By a reset, as by a host that has forgotten the connection.
    Rst,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_closing: bool,
    holds_all: bool,
    held: HashSet<usize>,
    pace: Option<u64>,
    delays: HashMap<usize, Duration>,
    editors: HashMap<(usize, Direction), Editor>,
    connections: Vec<Connection>,
}

#[derive(Debug, Default)]
struct Connection {
    sockets: Weak<Sockets>,
    ending: Option<Ending>,
    forth: u64,
    back: u64,
}

/// Both sockets of a connection; closed with the last of the threads that use them.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) near: TcpStream,
    pub(super) far: TcpStream,
}

impl Relay {
    /// Listens, and forwards what comes to `target`.
    ///
    /// # Errors
    /// No port, descriptor or thread is left.
    pub fn new(target: SocketAddr) -> io::Result<Self> {
        let listener = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { target, state: Mutex::default(), changed: Condvar::new() });
        let (ours, heard) = (Arc::clone(&shared), Arc::clone(&listener));
        let acceptor = std::thread::Builder::new()
            .name("kvferry-relay".into())
            .spawn(move || pump::accept(&ours, &heard))?;
        Ok(Self { shared, address, listener, acceptor: Some(acceptor) })
    }

    /// Lets at most so many bytes a second pass, each way of each connection; as many as come for `None`.
    pub fn pace(&self, bytes_per_second: Option<u64>) {
        self.shared.change(|state| state.pace = bytes_per_second);
    }

    /// Keeps everything that comes on a connection for this long. What comes meanwhile waits behind it.
    pub fn delay(&self, connection: usize, by: Duration) {
        self.shared.change(|state| state.delays.insert(connection, by));
    }

    /// Stops forwarding; sockets stay open, and new connections are accepted and held as well. What was
    /// under way in a thread may still pass.
    pub fn hold(&self, which: Connections) {
        self.shared.change(|state| match which {
            Connections::All => state.holds_all = true,
            Connections::Nth(number) => drop(state.held.insert(number)),
        });
    }

    /// Forwards again, from where it stopped. `All` ends every `hold`.
    pub fn resume(&self, which: Connections) {
        self.shared.change(|state| match which {
            Connections::All => {
                state.holds_all = false;
                state.held.clear();
            }
            Connections::Nth(number) => drop(state.held.remove(&number)),
        });
    }

    /// Ends connections, on both sides. Those to come are not concerned.
    pub fn cut(&self, which: Connections, ending: Ending) {
        let numbers = match which {
            Connections::All => 0..self.connections(),
            Connections::Nth(number) => number..number + 1,
        };
        numbers.for_each(|number| self.shared.cut(number, ending));
    }

    /// Changes a stream at a byte, counted from 0 as it was sent. Nothing if that byte has passed.
    pub fn edit(&self, connection: usize, direction: Direction, offset: u64, edit: Edit) {
        self.shared
            .change(|state| state.editors.entry((connection, direction)).or_default().add(offset, edit));
    }

    /// Where to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections that have come.
    pub fn connections(&self) -> usize {
        self.shared.state.lock().connections.len()
    }

    /// Connections that have come and not ended.
    pub fn open_connections(&self) -> usize {
        let state = self.shared.state.lock();
        state.connections.iter().filter(|connection| connection.sockets.strong_count() > 0).count()
    }

    /// Bytes a connection has passed on.
    pub fn passed(&self, connection: usize, direction: Direction) -> u64 {
        let state = self.shared.state.lock();
        state.connections.get(connection).map_or(0, |connection| match direction {
            Direction::Back => connection.back,
            Direction::Forth => connection.forth,
        })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.change(|state| state.is_closing = true);
        // Wakes the acceptor.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Read);
        self.cut(Connections::All, Ending::Fin);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    pub(super) fn is_closing(&self) -> bool {
        self.state.lock().is_closing
    }

    /// A number for a connection that has come.
    pub(super) fn number(&self) -> usize {
        let mut state = self.state.lock();
        state.connections.push(Connection::default());
        state.connections.len() - 1
    }

    /// Both sides of a connection are there; whether it has not been cut already.
    pub(super) fn opened(&self, number: usize, sockets: &Arc<Sockets>) -> bool {
        let mut state = self.state.lock();
        let is_closing = state.is_closing;
        let connection = &mut state.connections[number];
        connection.sockets = Arc::downgrade(sockets);
        connection.ending.is_none() && !is_closing
    }

    pub(super) fn cut(&self, number: usize, ending: Ending) {
        let mut state = self.state.lock();
        let Some(connection) = state.connections.get_mut(number) else { return };
        if connection.ending.is_some() {
            return;
        }
        connection.ending = Some(ending);
        let sockets = connection.sockets.upgrade();
        drop(state);
        self.changed.notify_all();
        let Some(sockets) = sockets else { return };
        for socket in [&sockets.near, &sockets.far] {
            // A socket that is gone needs no end.
            let _ = match ending {
                Ending::Fin => socket.shutdown(Shutdown::Both),
                Ending::Rst => {
                    let lingers = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
                    // Wakes who reads; the reset follows when the socket is closed.
                    lingers.map_err(io::Error::from).and_then(|()| socket.shutdown(Shutdown::Read))
                }
            };
        }
    }

    pub(super) fn is_cut(&self, number: usize) -> bool {
        self.state.lock().is_cut(number)
    }

    /// Bytes to be taken at once.
    pub(super) fn portion(&self, largest: usize) -> usize {
        let pace = self.state.lock().pace;
        pace.map_or(largest, |pace| {
            usize::try_from(pace / PORTIONS).map_or(largest, |len| len.clamp(1, largest))
        })
    }

    /// Edits what has come. Answers whether the stream goes on.
    pub(super) fn edit(&self, number: usize, direction: Direction, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let mut state = self.state.lock();
        let editor = state.editors.entry((number, direction)).or_default();
        editor.apply(bytes, out);
        !editor.has_ended()
    }

    /// Waits until so many bytes may pass. Answers whether they may: not once the connection is cut.
    pub(super) fn wait(&self, number: usize, bytes: usize) -> bool {
        let mut state = self.state.lock();
        let paced = state.pace.map_or(Duration::ZERO, |pace| {
            Duration::from_secs(1).saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX))
                / u32::try_from(pace.max(1)).unwrap_or(u32::MAX)
        });
        let pause = paced + state.delays.get(&number).copied().unwrap_or_default();
        if !pause.is_zero() {
            let _ = self.changed.wait_while_for(&mut state, |state| !state.is_cut(number), pause);
        }
        self.changed.wait_while(&mut state, |state| state.holds(number) && !state.is_cut(number));
        !state.is_cut(number)
    }

    pub(super) fn count(&self, number: usize, direction: Direction, bytes: u64) {
        let mut state = self.state.lock();
        let connection = &mut state.connections[number];
        match direction {
            Direction::Back => connection.back += bytes,
            Direction::Forth => connection.forth += bytes,
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }
}

impl State {
    fn is_cut(&self, number: usize) -> bool {
        self.is_closing || self.connections.get(number).is_some_and(|connection| connection.ending.is_some())
    }

    fn holds(&self, number: usize) -> bool {
        self.holds_all || self.held.contains(&number)
    }
}

/// Portions in which a second's bytes pass.
const PORTIONS: u64 = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};

    fn joined() -> (Relay, TcpListener, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay::new(listener.local_addr().unwrap()).unwrap();
        let near = TcpStream::connect(relay.address()).unwrap();
        let (far, _) = listener.accept().unwrap();
        (relay, listener, near, far)
    }

    fn read(mut stream: &TcpStream, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn both_ways_pass_and_are_counted_until_one_side_ends() {
        let (relay, _listener, mut near, mut far) = joined();
        near.write_all(&[7; 200_000]).unwrap();
        assert_eq!(read(&far, 200_000), [7; 200_000]);
        far.write_all(b"back").unwrap();
        assert_eq!(read(&near, 4), b"back");
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        far.write_all(b"still").unwrap();
        assert_eq!(read(&near, 5), b"still");
        drop(far);
        assert_eq!(near.read(&mut [0]).unwrap(), 0);
        assert_eq!((relay.connections(), relay.passed(0, Direction::Forth)), (1, 200_000));
    }

    #[test]
    fn what_is_held_passes_when_resumed_and_the_sockets_stay_open() {
        let (relay, _listener, mut near, far) = joined();
        relay.hold(Connections::Nth(0));
        near.write_all(b"late").unwrap();
        far.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let kind = (&far).read(&mut [0]).unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{kind}");
        assert_eq!(relay.open_connections(), 1);
        far.set_read_timeout(None).unwrap();
        relay.resume(Connections::All);
        assert_eq!(read(&far, 4), b"late");
    }

    #[test]
    fn a_cut_ends_both_sides_in_the_way_asked_for() {
        for (ending, is_reset) in [(Ending::Fin, false), (Ending::Rst, true)] {
            let (relay, _listener, mut near, mut far) = joined();
            near.write_all(b"x").unwrap();
            assert_eq!(read(&far, 1), b"x");
            relay.cut(Connections::Nth(0), ending);
            for stream in [&mut near, &mut far] {
                let end = stream.read(&mut [0]).map_err(|error| error.kind());
                assert_eq!(end, if is_reset { Err(ErrorKind::ConnectionReset) } else { Ok(0) });
            }
        }
    }

    #[test]
    fn delayed_and_paced_bytes_come_whole() {
        let (relay, _listener, mut near, far) = joined();
        relay.delay(0, Duration::from_millis(1));
        relay.pace(Some(1_000_000));
        near.write_all(&[9; 50_000]).unwrap();
        assert_eq!(read(&far, 50_000), [9; 50_000]);
    }

    #[test]
    fn dropping_it_ends_held_and_stuffed_connections() {
        let (relay, _listener, near, mut far) = joined();
        near.set_nonblocking(true).unwrap();
        // Nobody reads at the far side: the relay's writer is stuck.
        while (&near).write(&[0; 65_536]).is_ok() {}
        relay.hold(Connections::All);
        drop(relay);
        // What has passed, and then the end.
        let end = std::io::copy(&mut far, &mut std::io::sink());
        assert!(end.is_ok() || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    }
}
