//! Addresses as TCP transports publish them.

use kvferry::transport::tcp::probe;

/// Takes the input as an address.
pub(crate) fn run(input: &[u8]) {
    let Ok((address, encoded)) = probe::address(input) else { return };
    let (again, _) = probe::address(&encoded).expect("what was read can be read");
    assert_eq!(again, address, "from {input:x?}");
    assert!(address.port() != 0);
    let shown: Option<kvferry::HostPort> = address.to_string().parse().ok();
    assert_eq!(shown.as_ref(), Some(&address), "{address} as text");
}
