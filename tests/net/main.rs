//! Tests in namespaces: real kernels' TCP and UDP, real processes. They need root and a release build of the balancer.
//!
//! `cargo xtask test --lane net` runs them.
#![forbid(unsafe_code)]

mod bed;
mod path;
