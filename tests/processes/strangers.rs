//! Clients that do not speak the protocol.

use crate::program::{Program, SMALL};
use std::io::Write;
use std::net::TcpStream;

#[test]
fn garbage_on_every_port_changes_nothing_for_others() {
    let mut prefill =
        Program::prefill(&[SMALL, &["--repeat=2", "--chunk-tokens=16", "--pause-after-chunks=2"]].concat());
    let mut decode = Program::decode(&prefill.url(), &[SMALL, &["--repeat=2"]].concat());
    decode.until("decode: room 0: 32 tokens");
    // Kept open until the end: strangers that wait are harmless too.
    let mut strangers = Vec::new();
    let ports = [prefill.listening(), decode.listening()];
    // The prefill process has the directory besides its transport.
    assert_eq!(ports.each_ref().map(Vec::len), [2, 1], "{ports:?}");
    for port in ports.into_iter().flatten() {
        for garbage in garbage() {
            let mut stream = TcpStream::connect(port).unwrap();
            // It may be thrown out before it has said everything.
            let _ = stream.write_all(&garbage);
            strangers.push(stream);
        }
    }
    prefill.resume();
    assert_eq!(decode.succeed()["verified"], 2);
    assert_eq!(prefill.succeed()["rooms"], 2);
}

fn garbage() -> Vec<Vec<u8>> {
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    let noise = noise.take(1 << 16).collect();
    vec![Vec::new(), vec![0; 64], vec![0xFF; 4096], b"GET / HTTP/1.1\r\n\r\n".to_vec(), noise]
}
