//! Moving pages: codes d01 to d10.
