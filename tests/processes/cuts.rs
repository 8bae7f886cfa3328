//! A network that breaks and comes back, between processes that live on.

use crate::end::{End, PAGE_TOKENS, until};
use crate::plan::{Fabric, Plan};
use kvferry::{ErrorKind, Source};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Forwards connections to an address, until they are cut.
struct Wire {
    address: SocketAddr,
    ends: Arc<Mutex<Vec<TcpStream>>>,
}

impl Wire {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ends = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&ends);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let far = TcpStream::connect(target).unwrap();
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || {
                        // It ends when one of them does; then the other shall too.
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                kept.lock().unwrap().extend([near, far]);
            }
        });
        Self { address, ends }
    }

    /// Breaks all connections; new ones work.
    fn cut(&self) {
        for end in self.ends.lock().unwrap().drain(..) {
            // It may have ended already.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn s06_a_cut_fails_the_rooms_under_way_and_no_later_one() {
    let mut prefill = End::new(&Plan::new(Fabric::Tcp, "prefill", 1));
    let mut decode = End::new(&Plan::new(Fabric::Tcp, "decode", 0));
    let mut source = prefill.source();
    let wire = Wire::to(port(&mut source, None));
    port(&mut source, Some(wire.address));
    for round in 0..20 {
        let (first, next) = (2 * round, 2 * round + 1);
        for room in [first, next] {
            prefill.open(room);
            decode.receive(room, vec![source.clone()]);
            decode.grant(room, 4 * PAGE_TOKENS);
            prefill.send(room, PAGE_TOKENS);
            decode.wait_ready(room, PAGE_TOKENS);
            if room == first {
                prefill.send(room, 3 * PAGE_TOKENS);
                wire.cut();
            } else {
                prefill.send(room, 3 * PAGE_TOKENS);
                prefill.finish(room);
            }
            for outcome in [decode.end(room), prefill.end(room)] {
                let kind = outcome.error.as_ref().map(|error| error.kind);
                assert_eq!(kind, (room == first).then_some(ErrorKind::PeerLost), "{outcome:?}");
            }
        }
    }
    until("the last link to be the only one", || prefill.engine.stats().links == 1);
    assert_eq!((prefill.stain(), decode.stain()), (None, None));
}

/// Where a source listens, and where it is said to listen from now on.
fn port(source: &mut Source, new: Option<SocketAddr>) -> SocketAddr {
    let bytes = &mut source.addresses[0].1;
    // The port comes last in an address of this transport.
    let place = bytes.last_chunk_mut().unwrap();
    let old = SocketAddr::from(([127, 0, 0, 1], u16::from_le_bytes(*place)));
    if let Some(new) = new {
        *place = new.port().to_le_bytes();
    }
    old
}
