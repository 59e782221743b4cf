//! A report of the packet tracer: what one machine says of one marked packet, in one UDP datagram.
//!
//! In: a packet thread's [`TraceEvent`], the names of cluster and machine. Out: a line of JSON, and behind it a line with its MAC
//! in hex, at most [`REPORT_BYTES`]: readable in any capture, and believed only under the cluster's key.
//! Not here: sockets (`sluicegate`).
//! Invariant: what was sealed is opened under the same key, and nothing else is.
//! Source: paper §4.4.

use std::net::SocketAddr;

use forwarder::{Snapshot, TraceEvent, TraceKey, TunnelSourceKind};
use serde::{Deserialize, Serialize};

use admin::view::Explained;

use super::explained::explained;

/// One machine's word on one marked packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Which form this has: 1.
    pub version: u32,
    /// The trace that the mark names, in hex.
    pub trace: String,
    /// Which packet of the trace.
    pub probe: u32,
    /// The cluster.
    pub cluster: String,
    /// The machine.
    pub machine: String,
    /// The generation that it decided under.
    pub generation: u64,
    /// The packet thread.
    pub thread: u16,
    /// When, by the machine's clock: microseconds since 1970.
    pub unix_micros: u64,
    /// The packet's source; a later piece of a datagram has port 0.
    pub source: SocketAddr,
    /// Its destination, likewise.
    pub destination: SocketAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// What sent it in the tunnel that was opened here, if it came in one.
    pub opened: Option<Opened>,
    /// What became of it.
    #[serde(flatten)]
    pub explained: Explained,
}

/// What sent a tunnelled packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Opened {
    /// An encapsulator in front of the cluster.
    Encapsulator,
    /// A machine that redirected a fragment.
    Peer,
    /// Another cluster.
    Cluster,
}

impl Report {
    /// The report of `machine` about an event at `unix_micros`.
    #[must_use]
    pub fn new(
        sighting: &TraceEvent,
        snapshot: &Snapshot,
        [cluster, machine]: [&str; 2],
        unix_micros: u64,
    ) -> Self {
        let (source, destination) = sighting.flow.addresses();
        let mut explained = explained(&sighting.explanation, snapshot);
        // A service is named with its ports, of which there may be any number.
        explained.service = explained.service.map(|name| name.chars().take(NAME_CHARS).collect());
        Self {
            version: VERSION,
            trace: format!("{:016x}", sighting.mark.trace),
            probe: sighting.mark.probe,
            cluster: cluster.to_owned(),
            machine: machine.to_owned(),
            generation: sighting.generation.0,
            thread: sighting.thread.0,
            unix_micros,
            source: SocketAddr::new(source, sighting.flow.source_port),
            destination: SocketAddr::new(destination, sighting.flow.destination_port),
            protocol: sighting.flow.protocol,
            opened: sighting.decapsulated_from.map(Opened::from),
            explained,
        }
    }

    /// The datagram; `None` when it would be too long, which names in their bounds never are.
    #[must_use]
    pub fn seal(&self, key: &TraceKey) -> Option<Vec<u8>> {
        let mut text = serde_json::to_vec(self).ok()?;
        let mac = key.sign_report(&text);
        text.push(b'\n');
        text.extend(mac.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()));
        text.push(b'\n');
        (text.len() <= REPORT_BYTES).then_some(text)
    }

    /// Reads a datagram; `None` when it is not one that was sealed under `key`.
    #[must_use]
    pub fn open(datagram: &[u8], key: &TraceKey) -> Option<Self> {
        let (text, mac) = datagram.strip_suffix(b"\n")?.split_last_chunk::<MAC_DIGITS>()?;
        let text = text.strip_suffix(b"\n")?;
        if !key.is_report(text, &unhex(mac)?) {
            return None;
        }
        serde_json::from_slice(text).ok().filter(|report: &Self| report.version == VERSION)
    }
}

impl From<TunnelSourceKind> for Opened {
    fn from(kind: TunnelSourceKind) -> Self {
        match kind {
            TunnelSourceKind::Encapsulator => Self::Encapsulator,
            TunnelSourceKind::Peer => Self::Peer,
            TunnelSourceKind::Cluster => Self::Cluster,
        }
    }
}

fn unhex(digits: &[u8; MAC_DIGITS]) -> Option<[u8; MAC_DIGITS / 2]> {
    let mut bytes = [0; MAC_DIGITS / 2];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let lower = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        let text = std::str::from_utf8(pair).ok().filter(|text| text.bytes().all(|digit| lower(&digit)))?;
        *byte = u8::from_str_radix(text, 16).ok()?;
    }
    Some(bytes)
}

/// The longest datagram: it crosses any path whole.
pub const REPORT_BYTES: usize = 1_200;
const VERSION: u32 = 1;
const MAC_DIGITS: usize = 32;
const NAME_CHARS: usize = 128;

#[cfg(test)]
mod tests {
    use forwarder::HashKey;
    use proptest::prelude::*;

    use super::*;
    use admin::view::{Encapsulation, Hashed, Step, Verdict, WhereBackend};

    fn key() -> TraceKey {
        TraceKey::derive(&HashKey::new([5; 16]))
    }

    /// As long as names can make it.
    fn longest() -> Report {
        let name = "n".repeat(64);
        let host: std::net::IpAddr = "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap();
        let some = |text: &str| Some(text.to_owned());
        Report {
            version: 1,
            trace: "f".repeat(16),
            probe: u32::MAX,
            cluster: name.clone(),
            machine: name.clone(),
            generation: u64::MAX,
            thread: u16::MAX,
            unix_micros: u64::MAX,
            source: SocketAddr::new(host, u16::MAX),
            destination: SocketAddr::new(host, u16::MAX),
            protocol: 17,
            opened: Some(Opened::Encapsulator),
            explained: Explained {
                verdict: Verdict::Drop("fragment_datagram_full".to_owned()),
                step: Some(Step::FragmentTable),
                service: Some("s".repeat(NAME_CHARS)),
                pool: Some(name.clone()),
                hashed: Some(Hashed::Addresses),
                hash: some("0xffffffffffffffff"),
                table_entry: Some(16_777_213),
                table_size: Some(16_777_213),
                rehashed: Some(false),
                reselected: Some(false),
                backend: Some(WhereBackend { name, address: host, encapsulation: Encapsulation::Ipip }),
                replicas: Vec::new(),
            },
        }
    }

    #[test]
    fn the_longest_report_fits_into_its_datagram_and_comes_back() {
        let sealed = longest().seal(&key()).unwrap();
        assert!((900..=REPORT_BYTES).contains(&sealed.len()), "{}", sealed.len());
        assert_eq!(Report::open(&sealed, &key()), Some(longest()));
        let mut longer = longest();
        longer.explained.service = Some("s".repeat(1_000));
        assert_eq!(longer.seal(&key()), None);
    }

    #[test]
    fn a_report_of_another_cluster_is_not_opened() {
        let other = TraceKey::derive(&HashKey::new([6; 16]));
        assert_eq!(Report::open(&longest().seal(&other).unwrap(), &key()), None);
    }

    #[test]
    fn a_report_is_read_as_words() {
        let mut explained = longest().explained;
        explained.backend = Some(WhereBackend {
            name: "b3".to_owned(),
            address: [198, 18, 2, 3].into(),
            encapsulation: Encapsulation::Gre,
        });
        (explained.table_entry, explained.table_size) = (Some(17), Some(101));
        let mut say = |step, verdict, reselected| {
            (explained.step, explained.verdict) = (Some(step), verdict);
            explained.reselected = Some(reselected);
            explained.sentence()
        };
        let to = "backend b3 at 198.18.2.3 by gre";
        assert_eq!(say(Step::FlowTable, Verdict::Forward, false), format!("flow table -> {to}"));
        assert_eq!(
            say(Step::FragmentTable, Verdict::Drop("ttl".to_owned()), false),
            format!("fragment table -> {to} -> dropped as ttl")
        );
        assert_eq!(
            say(Step::Maglev, Verdict::Reply, true),
            format!("Maglev entry 17 of 101, its backend was gone -> {to} -> answered to its sender")
        );
        assert_eq!(
            say(Step::Redirect, Verdict::Forward, false),
            "redirected -> machine b3 at 198.18.2.3 by gre"
        );
        let dropped = Explained { verdict: Verdict::Drop("no_vip".to_owned()), ..Explained::default() };
        assert_eq!(dropped.sentence(), "dropped as no_vip");
    }

    proptest! {
        #[test]
        fn a_report_with_any_byte_changed_is_not_opened(place: prop::sample::Index, change in 1u8..) {
            let mut sealed = longest().seal(&key()).unwrap();
            let place = place.index(sealed.len());
            sealed[place] ^= change;
            prop_assert_eq!(Report::open(&sealed, &key()), None);
        }

        #[test]
        fn any_bytes_are_opened_without_a_panic(bytes: Vec<u8>, cut: prop::sample::Index) {
            prop_assert_eq!(Report::open(&bytes, &key()), None);
            let sealed = longest().seal(&key()).unwrap();
            prop_assert_eq!(Report::open(&sealed[..cut.index(sealed.len())], &key()), None);
        }
    }
}
