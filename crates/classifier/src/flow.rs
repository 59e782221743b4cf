//! Flows and their keyed hash.
//!
//! All machines of a cluster have the same key and compute the same hash for a flow. The hash is
//! SipHash-1-3, so clients without the key cannot cause deliberate collisions.
//!
//! See §3.3 of Eisenbud et al., *Maglev*, NSDI 2016 (5-tuple hash).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use packet::{Addresses, Family, FastHeaders, Parsed};
use siphasher::sip::SipHasher13;
use siphasher::sip128::SipHasher24;

use sip_lanes::{SipKey, halves};

/// A 5-tuple. IPv4 addresses are stored as IPv4-mapped IPv6 addresses. Both ports are 0 if the
/// protocol has no ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The source address. IPv4 addresses are IPv4-mapped.
    pub source: [u8; 16],
    /// The destination address. IPv4 addresses are IPv4-mapped.
    pub destination: [u8; 16],
    /// The source port in host byte order.
    pub source_port: u16,
    /// The destination port in host byte order.
    pub destination_port: u16,
    /// The IP protocol number.
    pub protocol: u8,
}

impl Flow {
    /// Creates a flow from the socket addresses of both sides. Returns `None` if the two addresses
    /// belong to different address families.
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

    /// Returns the flow of a parsed frame.
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

    /// Returns the flow of a packet whose headers were read by the fast path.
    #[inline]
    pub fn of_fast(headers: &FastHeaders) -> Self {
        let [s0, s1, d0, d1] = headers.ports.to_be_bytes();
        Self {
            source: headers.source_bytes(),
            destination: headers.destination_bytes(),
            source_port: u16::from_be_bytes([s0, s1]),
            destination_port: u16::from_be_bytes([d0, d1]),
            protocol: headers.protocol,
        }
    }

    /// Returns `true` if the flow uses IPv4.
    #[must_use]
    #[inline]
    pub fn is_v4(&self) -> bool {
        is_v4(&self.destination)
    }

    /// Returns `true` if the source is martian ([`packet::is_martian`]).
    #[must_use]
    pub fn is_martian(&self) -> bool {
        packet::is_martian(self.family(), halves(&self.source))
    }

    /// Returns `true` if the source is martian or an IPv6 link-local address
    /// ([`packet::is_unroutable`]). Such a packet cannot be part of a flow.
    #[must_use]
    pub fn is_unroutable(&self) -> bool {
        packet::is_unroutable(self.family(), halves(&self.source))
    }

    fn family(&self) -> Family {
        if self.is_v4() { Family::V4 } else { Family::V6 }
    }

    /// Returns the source and destination addresses.
    #[must_use]
    pub fn addresses(&self) -> (IpAddr, IpAddr) {
        let canonical = |bytes: [u8; 16]| Ipv6Addr::from(bytes).to_canonical();
        (canonical(self.source), canonical(self.destination))
    }
}

/// Returns an address as 16 bytes. IPv4 addresses are IPv4-mapped.
#[must_use]
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The packet fields that are hashed to select the backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HashPolicy {
    /// Hash the addresses, ports and protocol.
    #[default]
    FiveTuple,
    /// Hash the source and destination addresses.
    Addresses,
    /// Hash the source address. All connections from one client to services with the same pool then
    /// reach the same backend.
    Source,
    /// Hash the key in each request to a keyed pool (`Service::keyed` in the crate `forwarder`). If
    /// no request of the flow has been parsed, the 5-tuple is hashed.
    Key,
}

/// The cluster's secret hash key. The `Debug` output does not contain the secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey([u8; 16]);

impl HashKey {
    /// Creates a key from 16 secret bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Derives a secret for a different purpose. `label` identifies the purpose. The derived secret
    /// does not reveal this key.
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

/// A hasher for flows with a fixed key.
#[derive(Clone, Copy)]
pub struct FlowHasher(SipKey);

impl fmt::Debug for FlowHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlowHasher(secret)")
    }
}

impl FlowHasher {
    /// Creates a hasher with `key`.
    #[must_use]
    pub fn new(key: &HashKey) -> Self {
        Self(key.into())
    }

    /// Returns the SipHash key of this hasher.
    #[inline]
    pub fn key(&self) -> SipKey {
        self.0
    }

    /// Returns the 64-bit hash of the fields that `policy` selects. The hash input also contains a
    /// tag for the policy and the address family, so that different policies produce independent
    /// hashes.
    ///
    /// # Cost
    /// One SipHash-1-3 over 16 bytes for IPv4 or 40 bytes for IPv6.
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

    /// Returns the hash of a source prefix. The host bits of `prefix` must be zero. Different
    /// values of `number` produce independent hashes of the same prefix.
    #[must_use]
    #[inline]
    pub fn hash_source(&self, prefix: &[u8; 16], number: u32) -> u64 {
        let [first, second] = halves(prefix);
        self.0.hash(&[first, second, (u64::from(number) << 32) | u64::from(TAG_SOURCE_PREFIX)])
    }
}

impl FlowHasher {
    /// Returns the hash of the addresses and the protocol. This hash selects the machine and the
    /// packet thread that handle the fragments of a datagram (Maglev paper, §4.3). For IPv6,
    /// `protocol` must be the next header field of the fragment header, which is the same in all
    /// fragments.
    #[must_use]
    pub fn three_tuple(&self, addresses: &Addresses, protocol: u8) -> u64 {
        let Addresses { src: source, dst: destination } = *addresses;
        self.hash_pieces(&fragment_table::Key { source, destination, protocol, id: 0 }, TAG_THREE_TUPLE)
    }

    /// Returns the hash of the addresses, the protocol and the identification of a fragmented
    /// datagram. The fragment table uses this hash.
    #[must_use]
    pub fn datagram(&self, key: &fragment_table::Key) -> u64 {
        self.hash_pieces(key, TAG_DATAGRAM)
    }

    /// Returns the hash of a source address. For IPv6 only the first 64 bits are hashed, because
    /// one host can use all addresses of a /64 prefix.
    #[must_use]
    pub fn source(&self, address: &[u8; 16]) -> u64 {
        let mut who = *address;
        if !is_v4(address) {
            who[8..].fill(0);
        }
        self.hash_source(&who, NO_GUARD)
    }

    /// Returns the keyed hash of `bytes`.
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

/// The addresses and ports of a flow, in the form in which they are hashed. Each address is two
/// 64-bit words in little-endian byte order.
#[derive(Clone, Copy)]
pub struct Ends {
    /// The source address. IPv4 addresses are IPv4-mapped.
    pub source: [u64; 2],
    /// The destination address. IPv4 addresses are IPv4-mapped.
    pub destination: [u64; 2],
    /// The source port in the upper 16 bits, and the destination port in the lower 16 bits.
    pub ports: u32,
}

impl Ends {
    /// Returns the addresses and ports of a fast-path packet.
    #[inline(always)]
    pub fn of(headers: &FastHeaders) -> Self {
        Self { source: headers.source, destination: headers.destination, ports: headers.ports }
    }

    /// Returns the message to hash for a fast-path IPv4 packet.
    #[inline(always)]
    pub fn fast_v4(headers: &FastHeaders, policy: HashPolicy) -> [u64; 2] {
        let [source, destination] = headers.v4.map(u64::from);
        let destination = if policy == HashPolicy::Source { 0 } else { destination };
        [source << 32 | destination, Self::of(headers).tail(policy, headers.protocol) | FAMILY_V4]
    }

    /// Extracts the addresses, ports and protocol of a fast-path IPv4 packet from its hash input.
    /// The input must have been built for [`HashPolicy::FiveTuple`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields are parts of a word")]
    pub const fn of_fast_v4([addresses, tail]: [u64; 2]) -> ([u32; 2], u32, u8) {
        ([(addresses >> 32) as u32, addresses as u32], (tail >> 32) as u32, (tail >> 8) as u8)
    }

    /// Returns the message to hash for an IPv4 flow.
    #[inline(always)]
    pub fn message_v4(&self, policy: HashPolicy, protocol: u8) -> [u64; 2] {
        let [source, destination] =
            [self.source, self.destination].map(|words| words[1].swap_bytes() & 0xffff_ffff);
        let destination = if policy == HashPolicy::Source { 0 } else { destination };
        [source << 32 | destination, self.tail(policy, protocol) | FAMILY_V4]
    }

    /// Returns the message to hash for an IPv6 flow.
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

/// Returns `true` if the 16 bytes are an IPv4-mapped IPv6 address.
#[inline]
pub fn is_v4(address: &[u8; 16]) -> bool {
    address.first_chunk::<12>() == Some(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])
}

const TAG_FIVE_TUPLE: u32 = 1;
const TAG_ADDRESSES: u32 = 2;
const TAG_SOURCE: u32 = 3;
/// A placeholder for a missing guard number, which no guard has.
const NO_GUARD: u32 = u32::MAX;
const TAG_THREE_TUPLE: u32 = 4;
const TAG_DATAGRAM: u32 = 5;
const TAG_SOURCE_PREFIX: u32 = 6;
/// The bit that marks an IPv4 flow in the last word of a hash input. The lower bits of this word
/// contain the protocol and the tag.
const FAMILY_V4: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the fields extracted from a hash input with the fields of the flow.
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
            prop_assert_eq!(Ends::of_fast_v4(message), (addresses, ends.ports, protocol));
        }
    }

    fn flow(source: &str, source_port: u16, destination: &str, port: u16, protocol: u8) -> Flow {
        let parse = |s: &str| s.parse::<IpAddr>().unwrap();
        Flow::new((parse(source), source_port), (parse(destination), port), protocol).unwrap()
    }

    /// Compares the hash of a hand-written message with the hash that the crate `siphasher`
    /// computes.
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
