//! Health checks.

pub mod tunnel;
