//! What an operator looks at: the status page in a real browser, the metrics in a real Prometheus, the rules by promtool.
//!
//! They need root, a release build of the balancer, and the Debian packages `chromium`, `chromium-driver` and `prometheus`:
//! `cargo xtask test --lane web` runs them. A missing tool is a failure.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod browser;
mod http;
mod page;
mod prometheus;
mod running;
mod sample_server;
mod shown;
