//! Control connection and data lanes over TCP.
