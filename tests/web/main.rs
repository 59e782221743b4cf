//! Tests of the web interfaces: the status page in a browser, the metrics in Prometheus, and the
//! alert rules with promtool.
//!
//! The tests need root, a release build of the balancer, and the Debian packages `chromium`,
//! `chromium-driver` and `prometheus`. `cargo xtask test --lane web` runs them. If a tool is
//! missing, the tests fail.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a failed step must fail the test")]

mod browser;
mod http;
mod page;
mod prometheus;
mod running;
mod sample_server;
mod shown;
