//! `[check.NAME]`: health checks of backends.
//!
//! Pools refer to a [`Check`] by its name. The crate `health` runs the checks, and the module
//! `flatten` determines which checks apply to a pool. Invariant: `timeout` is less than
//! `fast_interval`, which is at most `interval`.

mod agent;
mod exchange;
mod exec;
mod kind;
mod tls;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use config_text::{Node, Place, Root, format_duration};
use serde::Serialize;

pub use self::agent::AgentCheck;
pub use self::exchange::{Expect, ExpectForm, Payload, TcpCheck, UdpCheck};
pub use self::exec::{ExecCheck, MOST_ARGUMENTS, is_argument, is_program};
pub use self::kind::{
    CheckKind, DnsCheck, DnsRecord, GrpcCheck, HttpCheck, MemcachedCheck, NtpCheck, Transport, dns_name,
    is_path,
};
pub use self::tls::{ClientCertificate, Tls};

use super::canonical;
use super::pem::Outside;

/// A health check.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Check {
    /// The name that pools use to refer to the check.
    #[serde(skip)]
    pub name: Arc<str>,
    /// The request to send, and the expected reply.
    #[serde(flatten)]
    pub kind: CheckKind,
    /// The address to which probes are sent. Default: [`Via::Backend`].
    pub via: Via,
    /// The time from the start of a probe to the start of the next probe to the same target: 100 ms
    /// to 1 h. Default: 2 s.
    #[serde(serialize_with = "canonical::span")]
    pub interval: Duration,
    /// The interval between probes after a result that contradicts the health state, until the
    /// health state is confirmed or changes. The value is between 100 ms and `interval`, and
    /// greater than `timeout`. Default: a quarter of `interval`, but at least 100 ms and 5/4 of
    /// `timeout`, and at most `interval`.
    #[serde(serialize_with = "canonical::span")]
    pub fast_interval: Duration,
    /// The time after which a probe without a reply fails. The minimum is 10 ms, and the value must
    /// be less than `interval`. Default: 500 ms, or half of `interval` if that is less.
    #[serde(serialize_with = "canonical::span")]
    pub timeout: Duration,
    /// The number of consecutive successful probes after which a target that is down becomes up: 1
    /// to 1,000. Default: 2. The first result after startup takes effect immediately.
    pub rise: u32,
    /// The number of consecutive failed probes after which a target that is up becomes down: 1 to
    /// 1,000. Default: 3.
    pub fall: u32,
    /// The maximum percentage by which an interval is randomly shortened or lengthened: 0 to 50.
    /// Default: 10.
    pub jitter_percent: u8,
}

/// The address to which probes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// Probes are sent to the address of the backend.
    Backend,
    /// Probes are sent to each VIP of the pool, in the encapsulation of the pool.
    Vip,
}

/// A check that pools can refer to by name. `None` if the section of the check has an error.
pub(super) struct CheckDraft {
    pub(super) place: Place,
    pub(super) value: Option<Arc<Check>>,
}

/// Reads all checks. Returns a map from name to check.
pub(super) fn read_all(
    root: &mut Root<'_>,
    outside: &Outside<'_>,
    exec_socket: Option<&Arc<Path>>,
) -> BTreeMap<Arc<str>, CheckDraft> {
    let draft = |(name, node): (Arc<str>, Node<'_>)| {
        let value = read(&name, &node, outside, exec_socket).map(Arc::new);
        (name, CheckDraft { place: node.place, value })
    };
    root.named("check").into_iter().map(draft).collect()
}

fn read(
    name: &Arc<str>,
    node: &Node<'_>,
    outside: &Outside<'_>,
    exec_socket: Option<&Arc<Path>>,
) -> Option<Check> {
    let mut section = node.section()?;
    let kind = kind::read(&mut section, outside, exec_socket);
    let is_exec = matches!(kind, Some(CheckKind::Exec(_)));
    let via = section.or("via", Via::Backend, |node| read_via(&node, is_exec));
    let interval = section.or("interval", DEFAULT_INTERVAL, |node| node.duration(LEAST_INTERVAL..=HOUR));
    let default = DEFAULT_TIMEOUT.min(interval / 2);
    let timeout = section.or("timeout", default, |node| read_timeout(&node, interval));
    let default = (interval / 4).max(LEAST_INTERVAL).max(timeout * 5 / 4).min(interval);
    let fast_interval = section.or("fast_interval", default, |node| read_fast(&node, interval, timeout));
    let rise = section.or("rise", 2, |node| node.number(1..=1_000));
    let fall = section.or("fall", 3, |node| node.number(1..=1_000));
    let jitter_percent = section.or("jitter_percent", 10, |node| node.number(0..=50));
    section.finish();
    let name = Arc::clone(name);
    Some(Check { name, kind: kind?, via, interval, timeout, fast_interval, rise, fall, jitter_percent })
}

fn read_via(node: &Node<'_>, is_exec: bool) -> Option<Via> {
    let via = node.choice(&[("backend", Via::Backend), ("vip", Via::Vip)])?;
    if is_exec && via == Via::Vip {
        return node.wrong(("an exec check cannot have via = \"vip\"", "a program cannot use the tunnel"));
    }
    Some(via)
}

fn read_timeout(node: &Node<'_>, interval: Duration) -> Option<Duration> {
    let timeout = node.duration(LEAST_TIMEOUT..=HOUR)?;
    if timeout < interval {
        return Some(timeout);
    }
    let message = format!(
        "\"timeout\" must be less than interval = \"{}\", got {}",
        format_duration(interval),
        node.shown()
    );
    node.wrong(message)
}

fn read_fast(node: &Node<'_>, interval: Duration, timeout: Duration) -> Option<Duration> {
    let fast = node.duration(LEAST_INTERVAL..=interval)?;
    if fast > timeout {
        return Some(fast);
    }
    let timeout = format_duration(timeout);
    node.wrong(format!("\"fast_interval\" must be more than timeout = \"{timeout}\", got {}", node.shown()))
}

const HOUR: Duration = Duration::from_secs(3_600);
const LEAST_INTERVAL: Duration = Duration::from_millis(100);
const LEAST_TIMEOUT: Duration = Duration::from_millis(10);
const DEFAULT_INTERVAL: Duration = Duration::from_secs(2);
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(500);
