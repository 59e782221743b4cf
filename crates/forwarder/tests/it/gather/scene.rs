//! A fixture with a keyed pool that splits requests, and with simulated backends. The fixture
//! computes the replies of the backends. The fixture also computes the expected reply, which is the
//! reply of a single server that has all values.

use std::collections::BTreeMap;
use std::net::IpAddr;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use forwarder::*;
use kv_switch::{Late, Memcached};

use crate::bed::*;
use crate::keyed::{CLIENT4, PORT, by_hand, drops, framed, keyed_of};

pub(crate) const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 61_000..=61_007;
pub(crate) const OWN4: &str = "192.0.2.1";
pub(crate) const OWN6: &str = "2001:db8::1";
/// The index of 20 ms in `GATHER_TIMEOUTS_MS`.
pub(crate) const TIMEOUT: usize = 4;

pub(crate) fn rules(late: Late) -> GatherRules {
    GatherRules { timeout: TIMEOUT, late }
}

pub(crate) fn gathering(late: Late) -> Parts {
    keyed_of(Box::new(Memcached::new(32)), KeyFailover::Next, KeyPath::Direct, Some(rules(late)))
}

pub(crate) fn own_config(thread: u16, threads: u16) -> PipelineConfig {
    let ports = SourcePorts::new(&SOURCE_PORTS, threads).unwrap();
    let upstream_requests = Some(UpstreamRequests {
        ports,
        requests: 3,
        passing: 36,
        fetches: 0,
        writes: 2,
        seed: [u64::from(thread), 7],
    });
    PipelineConfig { thread: ThreadId(thread), threads, upstream_requests, ..config() }
}

pub(crate) fn bed_of(parts: Parts) -> Bed {
    let mut bed = Bed::with(parts, own_config(0, 1));
    bed.held.free = 1_000;
    bed.poll();
    bed
}

pub(crate) fn bed(late: Late) -> Bed {
    bed_of(gathering(late))
}

/// A UDP datagram, parsed with etherparse. The checksums of the datagram have been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) link: Vec<u8>,
    pub(crate) source: (IpAddr, u16),
    pub(crate) destination: (IpAddr, u16),
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn seen(frame: &[u8]) -> Seen {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let (source, destination): (IpAddr, IpAddr) = match sliced.net.unwrap() {
        NetSlice::Ipv4(v4) => {
            assert!(v4.header().dont_fragment());
            assert_eq!(v4.header().to_header().calc_header_checksum(), v4.header().header_checksum());
            (v4.header().source_addr().into(), v4.header().destination_addr().into())
        }
        NetSlice::Ipv6(v6) => (v6.header().source_addr().into(), v6.header().destination_addr().into()),
        NetSlice::Arp(_) => panic!("{frame:02x?}"),
    };
    let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!("{frame:02x?}") };
    let payload = udp.payload().to_vec();
    let link = frame.len() - payload.len() - 8 - if source.is_ipv4() { 20 } else { 40 };
    assert!(packet::udp_checksum_ok(frame, &packet::parse(frame).unwrap()));
    Seen {
        link: frame[..link].to_vec(),
        source: (source, udp.source_port()),
        destination: (destination, udp.destination_port()),
        payload,
    }
}

/// Decapsulates an upstream request. Returns the number of the backend and the decapsulated
/// request.
pub(crate) fn asked(frame: &[u8]) -> (u8, Seen) {
    let inner =
        [&frame[..12], if frame[14 + 24] >> 4 == 4 { &[8, 0] } else { &[0x86, 0xdd] }, &frame[38..]].concat();
    (frame[14 + 19], seen(&inner))
}

/// Returns the replies of a server that has these values. Each reply is one datagram.
pub(crate) fn answers(payload: &[u8], values: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    if payload[8] == 0x80 {
        let mut rest = &payload[8..];
        while !rest.is_empty() {
            let (command, behind) = rest.split_at(24 + usize::from(rest[3]));
            let key = &command[24..];
            let mut said = match values.get(key) {
                Some(value) => {
                    let body = (4 + key.len() + value.len()) as u32;
                    let header =
                        [&[0x81, 0x0c, 0, key.len() as u8, 4, 0, 0, 0], &body.to_be_bytes()[..]].concat();
                    [&header, &command[12..16], &[0; 7], &[9], &[0, 0, 0, 5], key, value].concat()
                }
                None => {
                    let header = [0x81, 0x0c, 0, key.len() as u8, 0, 0, 0, 1, 0, 0, 0, key.len() as u8];
                    [&header[..], &command[12..16], &[0; 8], key].concat()
                }
            };
            said.splice(..0, [payload[0], payload[1], 0, 0, 0, 1, 0, 0]);
            all.push(said);
            rest = behind;
        }
        return all;
    }
    for line in payload[8..].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let line = String::from_utf8(line.to_vec()).unwrap();
        let words: Vec<&str> = line.trim_end().split(' ').collect();
        assert_eq!((words[0], &words[2..5]), ("mg", &["k", "f", "v"][..]));
        let said = match values.get(words[1].as_bytes()) {
            Some(value) => {
                let cas = if words.contains(&"c") { " c9" } else { "" };
                let line = format!("VA {} k{} f5 {}{cas}\r\n", value.len(), words[1], words[5]);
                [line.as_bytes(), value, b"\r\n"].concat()
            }
            None => format!("EN k{} {}\r\n", words[1], words[5]).into_bytes(),
        };
        let pieces: Vec<&[u8]> = said.chunks(1_392).collect();
        for (nth, piece) in pieces.iter().enumerate() {
            let frame = [payload[0], payload[1], 0, nth as u8, 0, pieces.len() as u8, 0, 0];
            all.push([&frame[..], piece].concat());
        }
    }
    all
}

/// Returns the complete reply that a single server with all these values would send.
pub(crate) fn wanted(keys: &[&str], verb: &str, values: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<u8> {
    let mut said = Vec::new();
    for key in keys {
        let Some(value) = values.get(key.as_bytes()) else { continue };
        let cas = if verb == "gets" { " 9" } else { "" };
        said.extend(format!("VALUE {key} 5 {}{cas}\r\n", value.len()).into_bytes());
        said.extend([&value[..], b"\r\n"].concat());
    }
    said.extend(b"END\r\n");
    said
}

/// Concatenates the datagrams of one reply.
pub(crate) fn joined(replies: &[(InterfaceId, Vec<u8>)]) -> Vec<u8> {
    let mut all = Vec::new();
    for (nth, (_, frame)) in replies.iter().enumerate() {
        let payload = seen(frame).payload;
        assert_eq!(payload[..8], [0x12, 0x34, 0, nth as u8, 0, replies.len() as u8, 0, 0]);
        assert!(payload.len() <= 1_400 && (nth + 1 == replies.len() || payload.len() == 1_400));
        all.extend(&payload[8..]);
    }
    all
}

pub(crate) fn get(keys: &[&str]) -> Vec<u8> {
    udp(CLIENT4, 40_000, VIP4, PORT, &framed(format!("get {}\r\n", keys.join(" ")).as_bytes()))
}

pub(crate) fn values(keys: &[(&str, &str)]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    keys.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

/// Returns `count` keys that are stored on different backends.
pub(crate) fn apart(count: u8) -> Vec<String> {
    let all = (0..100).map(|n| format!("key{n}"));
    let mut found = BTreeMap::new();
    for key in all {
        found.entry(by_hand(&key)).or_insert(key);
    }
    (1..=count).map(|backend| found[&backend].clone()).collect()
}

impl Bed {
    /// Sends a request. Returns the upstream requests to backends.
    pub(crate) fn begin(&mut self, frame: &[u8]) -> Vec<(u8, Seen)> {
        assert_eq!(self.send(24, frame).0, Verdict::Taken, "{:?}", drops(self));
        self.poll();
        std::mem::take(&mut self.held.originated).iter().map(|(_, frame)| asked(frame)).collect()
    }

    /// Sends a backend's reply to an upstream request.
    pub(crate) fn answer(&mut self, to: &Seen, payload: &[u8]) -> Verdict {
        self.send(0, &back(to, payload)).0
    }

    pub(crate) fn ended(&self) -> [u64; 5] {
        let counters = &self.counters;
        let all = [
            &counters.gathers_answered,
            &counters.gathers_incomplete,
            &counters.gathers_timed_out,
            &counters.gathers_too_long,
            &counters.gathers_unsent,
        ];
        all.map(Counter::read)
    }

    pub(crate) fn wait(&mut self, millis: u64) {
        self.now = Now::from_nanos(self.now.nanos() + millis * 1_000_000);
        self.poll();
    }
}

pub(crate) fn back(to: &Seen, payload: &[u8]) -> Vec<u8> {
    let [from, target] = [to.destination.0, to.source.0].map(|address| address.to_string());
    udp(&from, to.destination.1, &target, to.source.1, payload)
}
