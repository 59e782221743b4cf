//! `[check.NAME]`: how it is found out whether a backend works.
//!
//! In: the sections. Out: [`Check`]s by name, for pools to refer to.
//! Not here: checking (`health`), which pools use which check (`flatten`).
//! Invariant: `timeout` is below `fast_interval`, which is at most `interval`.

mod kind;
mod tls;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use config_text::{Node, Place, Root, format_duration};
use serde::Serialize;

pub use self::kind::{
    CheckKind, DnsCheck, DnsRecord, GrpcCheck, HttpCheck, MemcachedCheck, NtpCheck, TcpCheck, Transport,
    dns_name, is_path,
};
pub use self::tls::Tls;

use super::canonical;
use super::pem::Outside;

/// One way to find out whether a backend works.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Check {
    /// The name by which pools refer to it.
    #[serde(skip)]
    pub name: Arc<str>,
    /// What is asked, and which answer is good.
    #[serde(flatten)]
    pub kind: CheckKind,
    /// Default [`Via::Backend`].
    pub via: Via,
    /// Between the starts of two probes of one target: 100 ms to 1 h. Default 2 s.
    #[serde(serialize_with = "canonical::span")]
    pub interval: Duration,
    /// As `interval`, while in doubt: after a result that differs from the verdict. 100 ms to `interval`, and above
    /// `timeout`. Default a quarter of `interval`, but at least 100 ms and 5/4 of `timeout`, and at most `interval`.
    #[serde(serialize_with = "canonical::span")]
    pub fast_interval: Duration,
    /// A probe without an answer by then has failed: 10 ms to below `interval`. Default 500 ms, or half of
    /// `interval` when that is less.
    #[serde(serialize_with = "canonical::span")]
    pub timeout: Duration,
    /// Passes in a row that make a target up: 1 to 1,000. Default 2. The first result of all decides alone.
    pub rise: u32,
    /// Failures in a row that make a target down: 1 to 1,000. Default 3.
    pub fall: u32,
    /// By how much of it an interval is shortened or stretched at random, at most: 0 to 50. Default 10.
    pub jitter_percent: u8,
}

/// Which way a probe takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// To the backend's own address.
    Backend,
    /// To each VIP of the pool, inside the pool's encapsulation.
    Vip,
}

/// A name that a pool may use; without a value when its section has an error.
pub(super) struct CheckDraft {
    pub(super) place: Place,
    pub(super) value: Option<Arc<Check>>,
}

/// The checks of the file by name.
pub(super) fn read_all(root: &mut Root<'_>, outside: &Outside<'_>) -> BTreeMap<Arc<str>, CheckDraft> {
    let draft = |(name, node): (Arc<str>, Node<'_>)| {
        let value = read(&name, &node, outside).map(Arc::new);
        (name, CheckDraft { place: node.place, value })
    };
    root.named("check").into_iter().map(draft).collect()
}

fn read(name: &Arc<str>, node: &Node<'_>, outside: &Outside<'_>) -> Option<Check> {
    let mut section = node.section()?;
    let kind = kind::read(&mut section, outside);
    let via =
        section.or("via", Via::Backend, |node| node.choice(&[("backend", Via::Backend), ("vip", Via::Vip)]));
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

fn read_timeout(node: &Node<'_>, interval: Duration) -> Option<Duration> {
    let timeout = node.duration(LEAST_TIMEOUT..=HOUR)?;
    if timeout < interval {
        return Some(timeout);
    }
    node.wrong(format!("less than interval = \"{}\"", format_duration(interval)))
}

fn read_fast(node: &Node<'_>, interval: Duration, timeout: Duration) -> Option<Duration> {
    let fast = node.duration(LEAST_INTERVAL..=interval)?;
    if fast > timeout {
        return Some(fast);
    }
    node.wrong(format!("more than timeout = \"{}\"", format_duration(timeout)))
}

const HOUR: Duration = Duration::from_secs(3_600);
const LEAST_INTERVAL: Duration = Duration::from_millis(100);
const LEAST_TIMEOUT: Duration = Duration::from_millis(10);
const DEFAULT_INTERVAL: Duration = Duration::from_secs(2);
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(500);
