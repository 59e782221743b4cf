//! Reports of the packet tracer. A report describes how one machine handled one marked packet, and
//! is sent in one UDP datagram.
//!
//! A report consists of a line of JSON and a line with a message authentication code (MAC) in hex,
//! at most [`REPORT_BYTES`] in total. Packet captures show reports as readable text. Receivers
//! trust a report only if its MAC was computed with the cluster's key. The binary `sluicegate`
//! opens the sockets. Source: Maglev paper §4.4.

use std::net::SocketAddr;

use forwarder::{Snapshot, TraceEvent, TraceKey, TunnelSourceKind};
use serde::{Deserialize, Serialize};

use admin::view::Explained;

use super::explained::explained;

/// Describes how one machine handled one marked packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The version of the report format, which is 1.
    pub version: u32,
    /// The ID of the trace in hex, which was read from the mark in the packet.
    pub trace: String,
    /// The index of the packet within the trace.
    pub probe: u32,
    /// The name of the cluster to which the machine belongs.
    pub cluster: String,
    /// The name of the machine that sent the report.
    pub machine: String,
    /// The generation number of the snapshot that was used for the packet.
    pub generation: u64,
    /// The index of the packet thread.
    pub thread: u16,
    /// The machine's wall clock time, in microseconds since 1970.
    pub unix_micros: u64,
    /// The source address and port of the packet. The port is 0 for a fragment other than the
    /// first.
    pub source: SocketAddr,
    /// The destination address and port of the packet. The port is 0 for a fragment other than the
    /// first.
    pub destination: SocketAddr,
    /// The IP protocol number.
    pub protocol: u8,
    /// If the packet arrived in a tunnel, the kind of machine that sent it.
    pub opened: Option<Opened>,
    /// The machine's decision about the packet, and the reason for the decision.
    #[serde(flatten)]
    pub explained: Explained,
}

/// The kind of machine that sent a packet through a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Opened {
    /// An upstream tunnel, which ends at this cluster.
    UpstreamTunnel,
    /// Another machine of this cluster, which redirected a fragment.
    Peer,
    /// A machine of another cluster.
    Cluster,
}

impl Report {
    /// Creates a report about a packet that `machine` handled at `unix_micros`.
    #[must_use]
    pub fn new(
        sighting: &TraceEvent,
        snapshot: &Snapshot,
        [cluster, machine]: [&str; 2],
        unix_micros: u64,
    ) -> Self {
        let (source, destination) = sighting.flow.addresses();
        let mut explained = explained(&sighting.explanation, snapshot);
        // The service name is truncated, because it lists all ports of the service.
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

    /// Serializes the report and appends its MAC. Returns `None` if the datagram would be too long.
    /// A report whose names have a valid length always fits.
    #[must_use]
    pub fn seal(&self, key: &TraceKey) -> Option<Vec<u8>> {
        let mut text = serde_json::to_vec(self).ok()?;
        let mac = key.sign_report(&text);
        text.push(b'\n');
        text.extend(mac.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()));
        text.push(b'\n');
        (text.len() <= REPORT_BYTES).then_some(text)
    }

    /// Parses a datagram. Returns `None` if the MAC does not match `key`, or if the format is
    /// invalid.
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
            TunnelSourceKind::UpstreamTunnel => Self::UpstreamTunnel,
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

/// The maximum length of a report datagram in bytes. IP does not fragment a datagram of this
/// length.
pub const REPORT_BYTES: usize = 1_200;
const VERSION: u32 = 1;
const MAC_DIGITS: usize = 32;
const NAME_CHARS: usize = 128;

#[cfg(test)]
mod tests {
    use forwarder::HashKey;
    use proptest::prelude::*;

    use super::*;
    use admin::view::{Encapsulation, Hashed, Rejection, RejectionReply, Step, Verdict, WhereBackend};

    fn key() -> TraceKey {
        TraceKey::derive(&HashKey::new([5; 16]))
    }

    /// Creates a report in which all names have their maximum length.
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
            opened: Some(Opened::UpstreamTunnel),
            explained: Explained {
                verdict: Verdict::Drop("fragment_datagram_full".to_owned()),
                rejection: None,
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
    fn longest_report_fits_into_a_datagram() {
        let sealed = longest().seal(&key()).unwrap();
        assert!((900..=REPORT_BYTES).contains(&sealed.len()), "{}", sealed.len());
        assert_eq!(Report::open(&sealed, &key()), Some(longest()));
        let mut longer = longest();
        longer.explained.service = Some("s".repeat(1_000));
        assert_eq!(longer.seal(&key()), None);
    }

    #[test]
    fn report_of_another_cluster_is_rejected() {
        let other = TraceKey::derive(&HashKey::new([6; 16]));
        assert_eq!(Report::open(&longest().seal(&other).unwrap(), &key()), None);
    }

    #[test]
    fn report_is_shown_as_text() {
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
            format!("Maglev entry 17 of 101 (previous backend unavailable) -> {to} -> replied to the sender")
        );
        assert_eq!(
            say(Step::Redirect, Verdict::Forward, false),
            "redirected -> machine b3 at 198.18.2.3 by gre"
        );
        let dropped = Explained { verdict: Verdict::Drop("no_vip".to_owned()), ..Explained::default() };
        assert_eq!(dropped.sentence(), "dropped as no_vip");
        let rejection = Some(Rejection { reply: RejectionReply::TcpReset, reason: "no_vip".to_owned() });
        let rejected = Explained { verdict: Verdict::Reject, rejection, ..Explained::default() };
        assert_eq!(rejected.sentence(), "rejected as no_vip with a TCP reset");
    }

    proptest! {
        #[test]
        fn modified_report_is_rejected(place: prop::sample::Index, change in 1u8..) {
            let mut sealed = longest().seal(&key()).unwrap();
            let place = place.index(sealed.len());
            sealed[place] ^= change;
            prop_assert_eq!(Report::open(&sealed, &key()), None);
        }

        #[test]
        fn invalid_bytes_are_rejected_without_panic(bytes: Vec<u8>, cut: prop::sample::Index) {
            prop_assert_eq!(Report::open(&bytes, &key()), None);
            let sealed = longest().seal(&key()).unwrap();
            prop_assert_eq!(Report::open(&sealed[..cut.index(sealed.len())], &key()), None);
        }
    }
}
