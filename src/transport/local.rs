//! The in-process transport: the reference, and what single-process users run.
