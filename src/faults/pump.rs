//! The threads of a relay: one accepts, two for each connection forward.

use super::relay::{Direction, Ending, Shared, Sockets};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Accepts until the relay is closed, and then waits for all connections to end.
pub(super) fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    loop {
        let accepted = listener.accept();
        if shared.is_closing() {
            break;
        }
        let Ok((near, _)) = accepted else {
            // Out of descriptors, or a connection that went again.
            std::thread::yield_now();
            continue;
        };
        let number = shared.number();
        let ours = Arc::clone(shared);
        let thread = std::thread::Builder::new().name(format!("kvferry-relay-{number}"));
        threads.retain(|thread| !thread.is_finished());
        // Without a thread the connection is closed at once.
        threads.extend(thread.spawn(move || serve(&ours, number, near)));
    }
    for thread in threads {
        let _ = thread.join();
    }
}

fn serve(shared: &Shared, number: usize, near: TcpStream) {
    let Ok(sockets) = join(shared, near).map(Arc::new) else { return };
    if !shared.opened(number, &sockets) {
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| pump(shared, number, Direction::Back, &sockets.far, &sockets.near));
        pump(shared, number, Direction::Forth, &sockets.near, &sockets.far);
    });
}

fn join(shared: &Shared, near: TcpStream) -> io::Result<Sockets> {
    let far = TcpStream::connect_timeout(&shared.target, CONNECTING)?;
    for socket in [&near, &far] {
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(WRITING))?;
    }
    Ok(Sockets { near, far })
}

/// Forwards one way until the stream ends or is cut.
fn pump(shared: &Shared, number: usize, direction: Direction, from: &TcpStream, to: &TcpStream) {
    let mut buffer = vec![0; BUFFER];
    let mut edited = Vec::new();
    loop {
        let portion = shared.portion(BUFFER);
        let bytes = match (&mut &*from).read(&mut buffer[..portion]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // A reset is passed on as one.
            Err(_) => return shared.cut(number, Ending::Rst),
            Ok(0) if shared.is_cut(number) => return,
            Ok(0) => {
                // What was sent before may still be held back.
                if shared.wait(number, 0) {
                    let _ = to.shutdown(Shutdown::Write);
                }
                return;
            }
            Ok(len) => &buffer[..len],
        };
        edited.clear();
        let goes_on = shared.edit(number, direction, bytes, &mut edited);
        if !shared.wait(number, edited.len()) {
            return;
        }
        match send(shared, number, to, &edited) {
            Ok(()) => shared.count(number, direction, edited.len() as u64),
            Err(_) => return shared.cut(number, Ending::Rst),
        }
        if !goes_on {
            return shared.cut(number, Ending::Fin);
        }
    }
}

fn send(shared: &Shared, number: usize, mut to: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match to.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(len) => rest = &rest[len..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The peer does not read; look whether anybody still wants it to.
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
                if shared.is_cut(number) {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

const BUFFER: usize = 64 << 10;
const CONNECTING: Duration = Duration::from_secs(2);
/// After so long a writer looks whether its connection was cut.
const WRITING: Duration = Duration::from_millis(50);
