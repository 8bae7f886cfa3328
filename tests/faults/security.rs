//! What strangers send: codes x01 to x03.
