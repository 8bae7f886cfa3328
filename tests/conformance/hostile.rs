//! Bytes that no peer of ours would send, on the port.
