//! A flow, and the keyed hash that stands for it.
//!
//! Invariant: every machine of a cluster, given the same key, hashes a flow alike.
//! Source: paper §3.3 (5-tuple hash); SipHash-1-3 so that nobody outside can aim collisions.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use packet::{Addresses, Parsed, Plain};
use siphasher::sip::SipHasher13;
use siphasher::sip128::SipHasher24;

use sip_lanes::{SipKey, halves};

/// The 5-tuple. IPv4 addresses are v4-mapped; ports are 0 where the protocol has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Source address, v4-mapped for IPv4.
    pub source: [u8; 16],
    /// Destination address, v4-mapped for IPv4.
    pub destination: [u8; 16],
    /// Source port in host order.
    pub source_port: u16,
    /// Destination port in host order.
    pub destination_port: u16,
    /// IP protocol number.
    pub protocol: u8,
}

impl Flow {
    /// From addresses of one family; `None` when the families differ.
    #[must_use]
    pub fn new(
        source: impl Into<SocketAddr>,
        destination: impl Into<SocketAddr>,
        protocol: u8,
    ) -> Option<Self> {
        let (source, destination) = (source.into(), destination.into());
        (source.is_ipv4() == destination.is_ipv4()).then(|| Self {
            source: mapped(source.ip()),
            destination: mapped(destination.ip()),
            source_port: source.port(),
            destination_port: destination.port(),
            protocol,
        })
    }

    /// Of a parsed frame.
    #[inline]
    pub fn of(frame: &[u8], parsed: &Parsed) -> Self {
        let addresses = parsed.addresses(frame);
        Self {
            source: addresses.src,
            destination: addresses.dst,
            source_port: parsed.src_port,
            destination_port: parsed.dst_port,
            protocol: parsed.protocol,
        }
    }

    /// Of a plain packet.
    #[inline]
    pub fn of_plain(plain: &Plain) -> Self {
        let [s0, s1, d0, d1] = plain.ports.to_be_bytes();
        Self {
            source: plain.source_bytes(),
            destination: plain.destination_bytes(),
            source_port: u16::from_be_bytes([s0, s1]),
            destination_port: u16::from_be_bytes([d0, d1]),
            protocol: plain.protocol,
        }
    }

    /// Whether it is one of IPv4.
    #[must_use]
    #[inline]
    pub fn is_v4(&self) -> bool {
        is_v4(&self.destination)
    }

    /// Both ends as addresses.
    #[must_use]
    pub fn addresses(&self) -> (IpAddr, IpAddr) {
        let canonical = |bytes: [u8; 16]| Ipv6Addr::from(bytes).to_canonical();
        (canonical(self.source), canonical(self.destination))
    }
}

/// An address as 16 bytes, v4-mapped for IPv4.
#[must_use]
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Which parts of a packet choose its backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HashPolicy {
    /// Addresses, ports and protocol.
    #[default]
    FiveTuple,
    /// Source and destination address.
    Addresses,
    /// Source address: one client, one backend, for all services of a pool.
    Source,
    /// The key of each request (`Service::keyed` of the crate `forwarder`). Of a flow by itself, where no request is at hand, the
    /// 5-tuple.
    Key,
}

/// The cluster's secret hash key. Never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey([u8; 16]);

impl HashKey {
    /// From 16 secret bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// A key for another purpose, from which this one cannot be computed; `label` names the purpose.
    pub fn derive(&self, label: &[u8]) -> [u8; 16] {
        SipHasher24::new_with_key(&self.0).hash(label).as_bytes()
    }
}

impl From<&HashKey> for SipKey {
    fn from(key: &HashKey) -> Self {
        Self::new(&key.0)
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(secret)")
    }
}

/// Hashes flows under one key.
#[derive(Clone, Copy)]
pub struct FlowHasher(SipKey);

impl fmt::Debug for FlowHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlowHasher(secret)")
    }
}

impl FlowHasher {
    /// A hasher under `key`.
    #[must_use]
    pub fn new(key: &HashKey) -> Self {
        Self(key.into())
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> SipKey {
        self.0
    }

    /// The 64-bit hash of what `policy` looks at. Messages of different policies and families differ in their tag.
    ///
    /// # Cost
    /// SipHash-1-3 over 16 bytes for IPv4, 40 for IPv6.
    #[must_use]
    #[inline]
    pub fn hash(&self, policy: HashPolicy, flow: &Flow) -> u64 {
        let ports = (u32::from(flow.source_port) << 16) | u32::from(flow.destination_port);
        let ends = Ends { source: halves(&flow.source), destination: halves(&flow.destination), ports };
        if is_v4(&flow.destination) {
            return self.0.hash(&ends.message_v4(policy, flow.protocol));
        }
        self.0.hash(&ends.message_v6(policy, flow.protocol))
    }

    /// The hash of a source prefix, its host bits zero, under a number that keeps apart what must not share.
    #[must_use]
    #[inline]
    pub fn hash_source(&self, prefix: &[u8; 16], number: u32) -> u64 {
        let [first, second] = halves(prefix);
        self.0.hash(&[first, second, (u64::from(number) << 32) | u64::from(TAG_SOURCE_PREFIX)])
    }
}

impl FlowHasher {
    /// Who gathers the pieces of a datagram: addresses and protocol (paper §4.3). For IPv6 `protocol` is that of the
    /// fragment header, since the next header may differ between pieces.
    #[must_use]
    pub fn three_tuple(&self, addresses: &Addresses, protocol: u8) -> u64 {
        let Addresses { src: source, dst: destination } = *addresses;
        self.hash_pieces(&fragment_table::Key { source, destination, protocol, id: 0 }, TAG_THREE_TUPLE)
    }

    /// A datagram in the fragment table: the three-tuple and the identification.
    #[must_use]
    pub fn datagram(&self, key: &fragment_table::Key) -> u64 {
        self.hash_pieces(key, TAG_DATAGRAM)
    }

    /// One source, whatever it sends: an IPv4 address, or 64 bits of an IPv6 one, behind which all may be one host.
    #[must_use]
    pub fn source(&self, address: &[u8; 16]) -> u64 {
        let mut who = *address;
        if !is_v4(address) {
            who[8..].fill(0);
        }
        self.hash_source(&who, NO_GUARD)
    }

    /// Any bytes.
    #[must_use]
    pub fn digest(&self, bytes: &[u8]) -> u64 {
        SipHasher13::new_with_key(&self.0.bytes()).hash(bytes)
    }

    fn hash_pieces(&self, key: &fragment_table::Key, tag: u32) -> u64 {
        let ([s0, s1], [d0, d1]) = (halves(&key.source), halves(&key.destination));
        self.0.hash(&[
            s0,
            s1,
            d0,
            d1,
            (u64::from(key.id) << 32) | (u64::from(key.protocol) << 8) | u64::from(tag),
        ])
    }
}

/// Both ends of a flow, as its hash's message takes them: addresses as little-endian words of their 16 bytes.
#[derive(Clone, Copy)]
pub struct Ends {
    /// Source address, v4-mapped for IPv4.
    pub source: [u64; 2],
    /// Destination address, likewise.
    pub destination: [u64; 2],
    /// Source port in the upper half, destination port in the lower.
    pub ports: u32,
}

impl Ends {
    /// Of a plain packet.
    #[inline(always)]
    pub fn of(plain: &Plain) -> Self {
        Self { source: plain.source, destination: plain.destination, ports: plain.ports }
    }

    /// The message of a plain packet of IPv4.
    #[inline(always)]
    pub fn plain_v4(plain: &Plain, policy: HashPolicy) -> [u64; 2] {
        let [source, destination] = plain.v4.map(u64::from);
        let destination = if policy == HashPolicy::Source { 0 } else { destination };
        [source << 32 | destination, Self::of(plain).tail(policy, plain.protocol) | FAMILY_V4]
    }

    /// Addresses, ports and protocol of a plain packet of IPv4, out of its message under [`HashPolicy::FiveTuple`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields are parts of a word")]
    pub const fn of_plain_v4([addresses, tail]: [u64; 2]) -> ([u32; 2], u32, u8) {
        ([(addresses >> 32) as u32, addresses as u32], (tail >> 32) as u32, (tail >> 8) as u8)
    }

    /// The message of a flow of IPv4.
    #[inline(always)]
    pub fn message_v4(&self, policy: HashPolicy, protocol: u8) -> [u64; 2] {
        let [source, destination] =
            [self.source, self.destination].map(|words| words[1].swap_bytes() & 0xffff_ffff);
        let destination = if policy == HashPolicy::Source { 0 } else { destination };
        [source << 32 | destination, self.tail(policy, protocol) | FAMILY_V4]
    }

    /// The message of a flow of IPv6.
    #[inline(always)]
    pub fn message_v6(&self, policy: HashPolicy, protocol: u8) -> [u64; 5] {
        let ([s0, s1], tail) = (self.source, self.tail(policy, protocol));
        let [d0, d1] = if policy == HashPolicy::Source { [0; 2] } else { self.destination };
        [s0, s1, d0, d1, tail]
    }

    #[inline(always)]
    fn tail(&self, policy: HashPolicy, protocol: u8) -> u64 {
        let [high, low] = match policy {
            HashPolicy::FiveTuple | HashPolicy::Key => {
                [self.ports, (u32::from(protocol) << 8) | TAG_FIVE_TUPLE]
            }
            HashPolicy::Addresses => [0, TAG_ADDRESSES],
            HashPolicy::Source => [0, TAG_SOURCE],
        };
        (u64::from(high) << 32) | u64::from(low)
    }
}

/// Whether 16 bytes stand for an address of IPv4.
#[inline]
pub fn is_v4(address: &[u8; 16]) -> bool {
    address.first_chunk::<12>() == Some(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])
}

const TAG_FIVE_TUPLE: u32 = 1;
const TAG_ADDRESSES: u32 = 2;
const TAG_SOURCE: u32 = 3;
/// A number that no guard has.
const NO_GUARD: u32 = u32::MAX;
const TAG_THREE_TUPLE: u32 = 4;
const TAG_DATAGRAM: u32 = 5;
const TAG_SOURCE_PREFIX: u32 = 6;
/// Set in the tail of IPv4 messages, above protocol and tag.
const FAMILY_V4: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against the message of a flow, which is made of its bytes.
        #[test]
        fn what_a_message_of_ipv4_says_can_be_read_out_of_it(
            source: [u8; 4], destination: [u8; 4], source_port: u16, port: u16, protocol: u8,
        ) {
            let ends = Ends {
                source: halves(&mapped(source.into())),
                destination: halves(&mapped(destination.into())),
                ports: u32::from(source_port) << 16 | u32::from(port),
            };
            let message = ends.message_v4(HashPolicy::FiveTuple, protocol);
            let addresses = [source, destination].map(u32::from_be_bytes);
            prop_assert_eq!(Ends::of_plain_v4(message), (addresses, ends.ports, protocol));
        }
    }

    fn flow(source: &str, source_port: u16, destination: &str, port: u16, protocol: u8) -> Flow {
        let parse = |s: &str| s.parse::<IpAddr>().unwrap();
        Flow::new((parse(source), source_port), (parse(destination), port), protocol).unwrap()
    }

    /// The message spelled out by hand, hashed by the reference interface.
    #[test]
    fn an_ipv4_five_tuple_hashes_to_siphash_of_its_sixteen_bytes() {
        use std::hash::Hasher;
        let mut reference = siphasher::sip::SipHasher13::new_with_key(&[9; 16]);
        reference.write(&[10, 113, 0, 203, 7, 2, 0, 192]);
        reference.write(&[1, 6, 1, 0, 80, 0, 0x69, 0x7a]);
        let hasher = FlowHasher::new(&HashKey::new([9; 16]));
        let flow = flow("192.0.2.7", 0x7a69, "203.0.113.10", 80, 6);
        assert_eq!(hasher.hash(HashPolicy::FiveTuple, &flow), reference.finish());
    }

    #[test]
    fn a_policy_sees_just_what_it_names() {
        let hasher = FlowHasher::new(&HashKey::new([3; 16]));
        for (client, other_client, vip, other_vip) in [
            ("192.0.2.7", "192.0.2.8", "203.0.113.10", "203.0.113.11"),
            ("2001:db8::7", "2001:db8::8", "2001:db8:f::10", "2001:db8:f::11"),
        ] {
            let base = flow(client, 1000, vip, 80, 6);
            let changes = [
                flow(client, 1001, vip, 80, 6),
                flow(client, 1000, vip, 81, 6),
                flow(client, 1000, vip, 80, 17),
                flow(client, 1000, other_vip, 80, 6),
                flow(other_client, 1000, vip, 80, 6),
            ];
            let differs = |policy| changes.map(|c| hasher.hash(policy, &c) != hasher.hash(policy, &base));
            assert_eq!(differs(HashPolicy::FiveTuple), [true; 5]);
            assert_eq!(differs(HashPolicy::Addresses), [false, false, false, true, true]);
            assert_eq!(differs(HashPolicy::Source), [false, false, false, false, true]);
        }
    }

    #[test]
    fn mixed_families_are_no_flow() {
        let v4: IpAddr = "192.0.2.1".parse().unwrap();
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(Flow::new((v4, 1), (v6, 2), 6), None);
    }
}
