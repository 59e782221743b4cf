//! Generates the frames that a pipeline may receive, both valid frames and mutated frames.
//!
//! The generator uses only a few clients, ports and fragment identifications. Different packets
//! therefore often belong to the same flow or datagram, or quote each other.

use std::net::IpAddr;

use crate::bed::{CLUSTERS, OWN, PEERS, UPSTREAM_TUNNELS, VIPS};
use crate::random::Random;

/// Returns a random frame. One in five frames is mutated, and one in forty consists of random
/// bytes.
pub(crate) fn any(random: &mut Random) -> Vec<u8> {
    if random.once_in(40) {
        let len = random.below(120);
        return random.bytes(len);
    }
    let packet = match random.below(18) {
        0..=4 => whole(random),
        5..=9 => piece(random),
        10 => echo(random),
        11..=13 => error(random),
        14 => error_about_us(random),
        _ => tunnelled(random),
    };
    let mut frame = framed(random, &packet);
    if random.once_in(5) {
        tamper(random, &mut frame);
    }
    frame
}

/// The payload of an IP packet, with its protocol number.
struct Payload {
    protocol: u8,
    bytes: Vec<u8>,
}

/// The byte range of a fragment within its datagram.
#[derive(Clone, Copy)]
struct Place {
    id: u32,
    offset: u16,
    more: bool,
}

/// Returns the addresses of a client and a VIP, both of one IP version.
fn ends(random: &mut Random) -> (IpAddr, IpAddr) {
    let [taking @ .., whole_four, whole_six] = VIPS;
    let vip = if random.once_in(10) { random.of(&[whole_four, whole_six]) } else { random.of(&taking) };
    let host = random.below(12) as u8;
    let client: IpAddr = if vip.is_ipv4() {
        [198, 51, 100, host].into()
    } else {
        [0x2001, 0xdb8, 9, u16::from(host), 0, 0, 0, 7].into()
    };
    let stranger: IpAddr =
        if vip.is_ipv4() { [203, 0, 113, 99].into() } else { "2001:db8::99".parse().unwrap() };
    // In rare cases the client address is a VIP too.
    let client = if random.once_in(50) { vip } else { client };
    let martian: IpAddr = if vip.is_ipv4() { [127, 0, 0, 1].into() } else { "::1".parse().unwrap() };
    let client = if random.once_in(50) { martian } else { client };
    (client, if random.once_in(20) { stranger } else { vip })
}

fn datagram(random: &mut Random, to_vip: bool) -> Payload {
    let len = if random.once_in(3) { 1_100 + random.below(640) } else { random.below(80) };
    let data = vec![0x5a; len as usize];
    let (protocol, port) =
        random.of(&[(6u8, 80u16), (6, 80), (17, 443), (17, 53), (17, 54), (47, 0), (132, 9)]);
    let client_port = 1000 + random.below(200) as u16;
    let (from, to) = if to_vip { (client_port, port) } else { (port, client_port) };
    let mut bytes = [from.to_be_bytes(), to.to_be_bytes()].concat();
    match protocol {
        6 => {
            let flags = random.of(&[0x02, 0x10, 0x10, 0x18, 0x11, 0x04]);
            bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        }
        17 => {
            bytes.extend((8 + data.len() as u16).to_be_bytes());
            bytes.extend([0x12, 0x34]);
        }
        _ => bytes.extend([0; 4]),
    }
    bytes.extend(data);
    Payload { protocol, bytes }
}

fn whole(random: &mut Random) -> Vec<u8> {
    let (client, vip) = ends(random);
    let payload = datagram(random, true);
    ip(random, (client, vip), &payload, None)
}

/// Returns a fragment. There are only a few datagrams, their fragments appear in any order, and
/// some fragments are invalid.
fn piece(random: &mut Random) -> Vec<u8> {
    let (client, vip) = ends(random);
    let id = random.below(24) as u32;
    // For most datagrams, all copies of the first fragment are identical.
    let protocol = if id < 18 { 17 } else { random.of(&[6, 17, 1, 58, 47]) };
    let port: u16 = if id.is_multiple_of(3) { 53 } else { 443 };
    let mut bytes = [(1000 + id as u16).to_be_bytes(), port.to_be_bytes()].concat();
    bytes.extend([8, 0, 0, 0]);
    bytes.resize(if random.once_in(30) { random.below(24) as usize } else { 512 }, 0x77);
    if random.once_in(50) {
        bytes.push(random.byte());
    }
    let offset = random.of(&[0, 0, 512, 512, 1024, 1536, 8]);
    let more = offset == 0 || !random.once_in(3);
    ip(random, (client, vip), &Payload { protocol, bytes }, Some(Place { id, offset, more }))
}

fn icmp(vip: IpAddr, kind: u8, code: u8, word: [u8; 4], body: &[u8]) -> Payload {
    let mut bytes = vec![kind, code, 0, 0];
    bytes.extend(word);
    bytes.extend(body);
    Payload { protocol: if vip.is_ipv4() { 1 } else { 58 }, bytes }
}

/// Writes the checksum into a payload, including the pseudo-header if the protocol requires it.
fn summed(mut payload: Payload, (from, to): (IpAddr, IpAddr)) -> Payload {
    let mut all = vec![];
    if from.is_ipv6() {
        all.extend(octets(from));
        all.extend(octets(to));
        all.extend((payload.bytes.len() as u32).to_be_bytes());
        all.extend([0, 0, 0, payload.protocol]);
    }
    all.extend(&payload.bytes);
    let sum = checksum(&all).to_be_bytes();
    payload.bytes[2..4].copy_from_slice(&sum);
    payload
}

fn echo(random: &mut Random) -> Vec<u8> {
    let (client, vip) = ends(random);
    let kind = if vip.is_ipv4() { 8 } else { 128 };
    let kind = if random.once_in(6) { random.byte() } else { kind };
    let payload = summed(icmp(vip, kind, 0, [0, 7, 0, 1], b"are you there?"), (client, vip));
    ip(random, (client, vip), &payload, None)
}

fn error_kind(random: &mut Random, ipv4: bool) -> (u8, u8, [u8; 4]) {
    let (kind, code) = if ipv4 {
        random.of(&[(3, 4), (3, 4), (3, 1), (11, 0), (12, 0), (4, 0)])
    } else {
        random.of(&[(2, 0), (2, 0), (1, 3), (3, 0), (4, 1)])
    };
    let mtu = random.of(&[0u16, 68, 1280, 1400, 1500, 65_535]).to_be_bytes();
    (kind, code, [0, 0, mtu[0], mtu[1]])
}

fn router(ipv4: bool) -> IpAddr {
    if ipv4 { [192, 0, 2, 254].into() } else { "2001:db8:7::fe".parse().unwrap() }
}

/// Returns an ICMP error from a router about a packet from a VIP. The quoted packet is truncated,
/// as in real errors.
fn error(random: &mut Random) -> Vec<u8> {
    let (client, vip) = ends(random);
    let answer = datagram(random, false);
    let place = random.once_in(8).then_some(Place { id: 5, offset: random.of(&[0, 512]), more: true });
    // Some errors quote a packet that a VIP did not send.
    let quoted = if random.once_in(10) { (client, vip) } else { (vip, client) };
    let mut quote = ip(random, quoted, &answer, place);
    let least = if vip.is_ipv4() { 28 } else { 48 };
    quote.truncate(random.of(&[least - 1, least, least, 200, 548, 1_200]));
    let (kind, code, word) = error_kind(random, vip.is_ipv4());
    let ends = (router(vip.is_ipv4()), vip);
    let payload = summed(icmp(vip, kind, code, word, &quote), ends);
    ip(random, ends, &payload, None)
}

/// Returns an ICMP error from a router about an outer packet that this machine sent.
fn error_about_us(random: &mut Random) -> Vec<u8> {
    let inner = whole(random);
    let ipv4 = random.once_in(2);
    let own = OWN[usize::from(!ipv4)];
    let backend: IpAddr = if ipv4 { [198, 18, 1, 1].into() } else { "2001:db8:18::2".parse().unwrap() };
    let family = if inner[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    let gre = Payload { protocol: 47, bytes: [&[0, 0][..], &family, &inner].concat() };
    let mut quote = plain(own, backend, &gre);
    quote.truncate(random.of(&[60, 100, 548]));
    let (kind, code, word) = error_kind(random, ipv4);
    let ends = (router(ipv4), own);
    let payload = summed(icmp(own, kind, code, word, &quote), ends);
    // Some errors are forged: they are sent to a VIP.
    let to = if random.once_in(4) { VIPS[usize::from(!ipv4)] } else { own };
    ip(random, (ends.0, to), &payload, None)
}

/// Returns a tunneled packet. The packet is sent to this machine by an allowed or unknown sender,
/// or it is sent to a VIP.
fn tunnelled(random: &mut Random) -> Vec<u8> {
    let (client, vip) = ends(random);
    let inner = match random.below(3) {
        0 => whole(random),
        1 => piece(random),
        _ => error(random),
    };
    let v4 = inner[0] >> 4 == 4;
    let payload = match random.below(3) {
        0 => {
            let family = if v4 { [0x08, 0x00] } else { [0x86, 0xdd] };
            let mark = random.of(&[0, 0, 1, 7]); // recursion control
            Payload { protocol: 47, bytes: [&[mark, 0][..], &family, &inner].concat() }
        }
        1 => Payload { protocol: if v4 { 4 } else { 41 }, bytes: inner },
        _ => {
            let next = if v4 { 4 } else { 41 };
            let length = (12 + inner.len() as u16).to_be_bytes();
            let head = [0xc0, 0x00, 0x17, 0xc0, length[0], length[1], 0, 0, 0, next, 0, 0];
            Payload { protocol: 17, bytes: [&head[..], &inner].concat() }
        }
    };
    let family = random.below(2) as usize;
    let senders = [UPSTREAM_TUNNELS, UPSTREAM_TUNNELS, PEERS, CLUSTERS, [router(true), router(false)]];
    let sender = random.of(&senders)[family];
    let ends = if random.once_in(4) { (client, vip) } else { (sender, OWN[family]) };
    let mut packet = ip(random, ends, &payload, None);
    if random.once_in(4) {
        congested(&mut packet);
    }
    packet
}

/// Sets the ECN field of a packet to "congestion experienced".
fn congested(packet: &mut [u8]) {
    if packet[0] >> 4 == 4 {
        packet[1] |= 3;
        sum_v4(packet);
    } else {
        packet[1] |= 0x30;
    }
}

/// Returns an IP packet without options or extension headers.
fn plain(source: IpAddr, destination: IpAddr, payload: &Payload) -> Vec<u8> {
    header(source, destination, payload.protocol, 64, 0x4000, &payload.bytes, &[])
}

/// Returns an IP packet. Some packets have options, extension headers, the DF flag or a low TTL.
fn ip(
    random: &mut Random,
    (source, destination): (IpAddr, IpAddr),
    payload: &Payload,
    place: Option<Place>,
) -> Vec<u8> {
    let ttl = if random.once_in(12) { random.below(3) as u8 } else { 2 + random.byte() % 60 };
    if source.is_ipv4() {
        let options = if random.once_in(8) { vec![1; 4 * (1 + random.below(10) as usize)] } else { vec![] };
        let flags = match place {
            Some(Place { offset, more, .. }) => (u16::from(more) << 13) | (offset / 8),
            None => random.of(&[0, 0x4000]),
        };
        let mut packet = header(source, destination, payload.protocol, ttl, flags, &payload.bytes, &options);
        if let Some(Place { id, .. }) = place {
            packet[4..6].copy_from_slice(&(id as u16).to_be_bytes());
            sum_v4(&mut packet);
        }
        return packet;
    }
    let mut bytes = payload.bytes.clone();
    let mut next = payload.protocol;
    if let Some(Place { id, offset, more }) = place {
        let word = ((offset & 0xfff8) | u16::from(more)).to_be_bytes();
        let id = id.to_be_bytes();
        bytes = [&[next, 0, word[0], word[1]][..], &id, &bytes].concat();
        next = 44;
    }
    for kind in [60, 43, 0] {
        if random.once_in(12) {
            let words = random.below(3) as u8;
            let mut extension = vec![next, words];
            extension.resize(8 * (1 + usize::from(words)), 0);
            bytes = [extension, bytes].concat();
            next = kind;
        }
    }
    header(source, destination, next, ttl, 0, &bytes, &[])
}

fn header(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ttl: u8,
    flags: u16,
    payload: &[u8],
    options: &[u8],
) -> Vec<u8> {
    let mut packet;
    if source.is_ipv4() {
        let words = 5 + options.len() as u8 / 4;
        let total = (usize::from(words) * 4 + payload.len()) as u16;
        packet = vec![0x40 | words, 0];
        packet.extend(total.to_be_bytes());
        packet.extend([0, 9]);
        packet.extend(flags.to_be_bytes());
        packet.extend([ttl, protocol, 0, 0]);
        packet.extend(octets(source));
        packet.extend(octets(destination));
        packet.extend(options);
        sum_v4(&mut packet);
    } else {
        packet = vec![0x60, 0, 0, 0];
        packet.extend((payload.len() as u16).to_be_bytes());
        packet.extend([protocol, ttl]);
        packet.extend(octets(source));
        packet.extend(octets(destination));
    }
    packet.extend(payload);
    packet
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Computes and writes the checksum of an IPv4 header.
pub(crate) fn sum_v4(packet: &mut [u8]) {
    let len = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let sum = checksum(&packet[..len]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u64::from(w[0]) << 8 | w.get(1).map_or(0, |&low| u64::from(low)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The byte range of a fragment that [`piece_of`] builds.
#[derive(Clone, Copy)]
pub(crate) struct FragmentStep {
    pub(crate) id: u32,
    pub(crate) offset: usize,
    pub(crate) more: bool,
}

/// Returns a UDP header for `length` bytes of payload. Its checksum is wrong.
pub(crate) fn udp_header(from: u16, to: u16, length: u16) -> Vec<u8> {
    [from.to_be_bytes(), to.to_be_bytes(), (8 + length).to_be_bytes(), [0x12, 0x34]].concat()
}

/// Returns an untagged frame with an unfragmented UDP packet.
pub(crate) fn whole_of((source, destination): (IpAddr, IpAddr), udp: &[u8]) -> Vec<u8> {
    untagged(&header(source, destination, 17, 64, 0x4000, udp, &[]))
}

/// Returns an untagged frame with one fragment of a UDP packet.
pub(crate) fn piece_of(
    (source, destination): (IpAddr, IpAddr),
    bytes: &[u8],
    piece: FragmentStep,
) -> Vec<u8> {
    let FragmentStep { id, offset, more } = piece;
    let (offset, more) = (offset as u16, u16::from(more));
    if source.is_ipv6() {
        let [high, low] = (offset | more).to_be_bytes();
        let bytes = [&[17, 0, high, low][..], &id.to_be_bytes(), bytes].concat();
        return untagged(&header(source, destination, 44, 64, 0, &bytes, &[]));
    }
    let mut packet = header(source, destination, 17, 64, (more << 13) | (offset / 8), bytes, &[]);
    packet[4..6].copy_from_slice(&(id as u16).to_be_bytes());
    sum_v4(&mut packet);
    untagged(&packet)
}

/// Decrements the TTL or hop limit of a packet, like a router.
pub(crate) fn lower_hops(packet: &mut [u8]) {
    if packet[0] >> 4 == 6 {
        packet[7] -= 1;
    } else {
        packet[8] -= 1;
        sum_v4(packet);
    }
}

fn untagged(packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind, packet].concat()
}

/// Puts a packet into an Ethernet frame, with up to three VLAN tags and with padding.
fn framed(random: &mut Random, packet: &[u8]) -> Vec<u8> {
    let mut frame = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]].concat();
    let tags = random.of(&[0, 0, 0, 0, 0, 1, 1, 2, 3]);
    for _ in 0..tags {
        frame.extend(random.of(&[[0x81, 0x00], [0x88, 0xa8]]));
        frame.extend([0, random.byte()]);
    }
    frame.extend(if packet[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] });
    frame.extend(packet);
    if random.once_in(4) {
        frame.resize(frame.len().max(60), 0);
    }
    frame
}

/// Mutates a frame: flips bytes, mostly in the headers, and truncates the frame or appends bytes.
fn tamper(random: &mut Random, frame: &mut Vec<u8>) {
    for _ in 0..random.below(5) {
        let reach = if random.once_in(4) { frame.len() } else { frame.len().min(90) };
        let at = random.below(reach as u64) as usize;
        frame[at] = if random.once_in(2) { random.byte() } else { frame[at] ^ (1 << random.below(8)) };
    }
    match random.below(6) {
        0 => frame.truncate(random.below(frame.len() as u64 + 1) as usize),
        1 => frame.resize(frame.len() + random.below(30) as usize, 0),
        _ => {}
    }
}
