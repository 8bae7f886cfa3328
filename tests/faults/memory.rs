//! Whose pages they are: codes m01, m02 and m09.
