//! Running for months: codes o01 to o07.
