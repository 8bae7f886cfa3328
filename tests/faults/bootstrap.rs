//! Finding each other: codes b01 to b06.
