//! Admitted grants of a link and who is applying under them.
