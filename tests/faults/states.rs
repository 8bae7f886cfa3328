//! How rooms go on and end: codes s01 to s06.
