//! Tests of VLAN tags. Packets that leave on the client's link must have the tags with which the
//! client's packets arrived.

use testbed::{Bed, Capture, Encapsulation, Frame, LbConfig, inject};

use crate::scene::{BOUND, Scene};

pub(crate) fn comes_back_tagged(config: impl FnOnce(&Bed) -> LbConfig) {
    let scene = Scene::with(config);
    let host = &scene.bed.balancers[0];
    let back = Capture::start(&scene.bed.router, &host.port, 100, |frame| {
        Frame::parse(frame).is_some_and(|frame| frame.outer().is_some())
    })
    .unwrap();
    let mut sent = 0;
    for ipv4 in [true, false] {
        for (tcp_flags, vlans) in [
            (None, vec![]),
            (None, vec![7]),
            (Some(0x02), vec![4094]),
            (None, vec![100, 200]),
            (Some(0x02), vec![1, 7]),
        ] {
            let port = if tcp_flags.is_some() { Bed::HTTP_PORT } else { Bed::SINK_PORT };
            let mut spec = scene.frame(ipv4, port);
            (spec.tcp_flags, spec.vlans) = (tcp_flags, vlans);
            inject(&scene.bed.router, &host.port, &spec.bytes()).unwrap();
            sent += 1;
            let seen = back
                .wait_for(sent, BOUND)
                .unwrap_or_else(|e| panic!("{e:#} {spec:?}\n{}", scene.diagnosis()));
            let bytes = &seen[sent - 1].bytes;
            let frame = Frame::parse(bytes).unwrap();
            assert_eq!((frame.to, frame.from, &frame.vlans), (spec.from, spec.to, &spec.vlans));
            let link = 14 + 4 * spec.vlans.len();
            // All bytes before the EtherType must be unchanged. The EtherType must be IPv4, which
            // is the protocol of the outer packet.
            assert_eq!(bytes[12..link - 2], spec.bytes()[12..link - 2], "the tags differ");
            assert_eq!(bytes[link - 2..link], [0x08, 0x00]);
            let outer = frame.outer().unwrap();
            let original = Frame::parse(&spec.bytes()).unwrap().ip;
            assert_eq!(outer.inner.ttl + 1, original.ttl);
            assert_eq!(
                (outer.inner.source, outer.inner.destination),
                (original.source, original.destination)
            );
            assert_eq!(outer.inner.payload(), original.payload());
        }
    }
    let counts = scene.settled();
    assert_eq!((counts.drops(), counts.sent()), (vec![], sent as u64));
}

#[test]
fn tagged_frames_keep_tags_with_gre() {
    comes_back_tagged(|bed| LbConfig::new(bed).encapsulation(Encapsulation::Gre));
}

#[test]
fn tagged_frames_keep_tags_with_gue() {
    comes_back_tagged(|bed| LbConfig::new(bed).encapsulation(Encapsulation::Gue));
}

/// A VLAN tag as in a frame: the EtherType (TPID), and the word with priority and VLAN ID (TCI).
type Raw = (u16, u16);

fn with_tags(frame: &[u8], tags: &[Raw]) -> Vec<u8> {
    let bytes = tags.iter().flat_map(|(kind, control)| [kind.to_be_bytes(), control.to_be_bytes()].concat());
    [&frame[..12], &bytes.collect::<Vec<u8>>(), &frame[12..]].concat()
}

/// The tags of a received frame and the tags of the sent frame. The second element is `None` if the
/// frame must be dropped.
type Case<'a> = (&'a [Raw], Option<&'a [Raw]>);

/// Sends the frames of each case over IPv4 and IPv6, and checks the tags of the sent frames.
/// Dropped frames must be counted.
fn leaves(policy: &str, cases: &[Case<'_>]) {
    let scene = Scene::with(|bed| {
        let mut config = LbConfig::new(bed);
        config.more = format!("[machine.lb1.vlan.lb0]\n{policy}");
        config
    });
    let host = &scene.bed.balancers[0];
    let wrapped = |frame: &[u8]| Frame::parse(frame).is_some_and(|frame| frame.outer().is_some());
    let back = Capture::start(&scene.bed.router, &host.port, 100, wrapped).unwrap();
    let (mut sent, mut dropped) = (0, 0);
    for ipv4 in [true, false] {
        for (before, after) in cases {
            let spec = scene.frame(ipv4, Bed::SINK_PORT);
            inject(&scene.bed.router, &host.port, &with_tags(&spec.bytes(), before)).unwrap();
            let Some(after) = after else {
                dropped += 1;
                continue;
            };
            sent += 1;
            let seen = back
                .wait_for(sent, BOUND)
                .unwrap_or_else(|e| panic!("{e:#} {before:x?}\n{}", scene.diagnosis()));
            let bytes = &seen[sent - 1].bytes;
            let link = 14 + 4 * after.len();
            let plain = [&bytes[..12], &bytes[link - 2..]].concat();
            assert_eq!(bytes, &with_tags(&plain, after), "{before:x?} {after:x?}");
            let outer = Frame::parse(&plain).unwrap().outer().unwrap();
            let original = Frame::parse(&spec.bytes()).unwrap().ip;
            assert!(outer.outer.checksum_ok && outer.inner.checksum_ok);
            assert_eq!((outer.inner.ttl + 1, outer.inner.payload()), (original.ttl, original.payload()));
        }
    }
    let counts = scene.settled();
    let drops = if dropped > 0 { vec![("vlan_unmapped".to_owned(), dropped)] } else { vec![] };
    assert_eq!((counts.sent(), counts.drops()), (sent as u64, drops));
}

const UNTAGGED: &[Raw] = &[];

#[test]
fn tags_of_both_kinds_are_kept_as_they_are() {
    leaves(
        "policy = \"keep\"",
        &[
            (UNTAGGED, Some(UNTAGGED)),
            (&[(0x8100, 7)], Some(&[(0x8100, 7)])),
            (&[(0x88a8, 0xf007)], Some(&[(0x88a8, 0xf007)])),
            (&[(0x88a8, 100), (0x8100, 0x6007)], Some(&[(0x88a8, 100), (0x8100, 0x6007)])),
            (&[(0x8100, 100), (0x8100, 7)], Some(&[(0x8100, 100), (0x8100, 7)])),
        ],
    );
}

#[test]
fn tags_of_both_kinds_are_stripped() {
    leaves(
        "policy = \"strip\"",
        &[
            (UNTAGGED, Some(UNTAGGED)),
            (&[(0x8100, 7)], Some(UNTAGGED)),
            (&[(0x88a8, 7)], Some(UNTAGGED)),
            (&[(0x88a8, 100), (0x8100, 7)], Some(UNTAGGED)),
            (&[(0x8100, 100), (0x8100, 7)], Some(UNTAGGED)),
        ],
    );
}

#[test]
fn tags_are_translated_and_unknown_tags_dropped() {
    leaves(
        "policy = \"translate\"\ntranslate = [{ from = [7], to = [200] }, { from = [100, 7], to = [300, 400] }, \
         { from = [8], to = [300, 400], outer = \"802.1q\" }, { from = [9], to = [] }, { from = [], to = [50] }, \
         { from = [100, 8], to = [51], outer = \"802.1ad\" }]",
        &[
            (&[(0x8100, 0x2007)], Some(&[(0x8100, 0x20c8)])),
            (&[(0x88a8, 0x5007)], Some(&[(0x8100, 0x50c8)])),
            (&[(0x88a8, 0x2064), (0x8100, 0x4007)], Some(&[(0x88a8, 0x212c), (0x8100, 0x4190)])),
            (&[(0x8100, 0x2064), (0x8100, 0x4007)], Some(&[(0x88a8, 0x212c), (0x8100, 0x4190)])),
            (&[(0x8100, 0xe008)], Some(&[(0x8100, 0xe12c), (0x8100, 0xe190)])),
            (&[(0x8100, 9)], Some(UNTAGGED)),
            (UNTAGGED, Some(&[(0x8100, 50)])),
            // A priority tag has the VLAN ID 0.
            (&[(0x8100, 0xa000)], Some(&[(0x8100, 0xa032)])),
            (&[(0x88a8, 100), (0x8100, 8)], Some(&[(0x88a8, 51)])),
            (&[(0x8100, 10)], None),
            (&[(0x88a8, 7), (0x8100, 100)], None),
        ],
    );
}

#[test]
fn ping_replies_keep_received_tags() {
    let scene = Scene::with(|bed| {
        let mut config = LbConfig::new(bed);
        config.more = "[machine.lb1.vlan.lb0]\npolicy = \"strip\"".into();
        config
    });
    let host = &scene.bed.balancers[0];
    let tags = [(0x88a8, 0x2064), (0x8100, 7)];
    for ipv4 in [true, false] {
        let mut spec = scene.frame(ipv4, Bed::SINK_PORT);
        (spec.icmp, spec.vlans) = (Some(if ipv4 { [8, 0] } else { [128, 0] }), vec![]);
        let answer = if ipv4 { 0 } else { 129 };
        let back = Capture::start(&scene.bed.router, &host.port, 10, move |bytes| {
            Frame::parse(bytes)
                .is_some_and(|f| matches!(f.ip.protocol, 1 | 58) && f.ip.payload()[0] == answer)
        })
        .unwrap();
        inject(&scene.bed.router, &host.port, &with_tags(&spec.bytes(), &tags)).unwrap();
        let seen = back.wait_for(1, BOUND).unwrap_or_else(|e| panic!("{e:#}\n{}", scene.diagnosis()));
        let bytes = &seen[0].bytes;
        assert_eq!(bytes[..12], [spec.from, spec.to].concat());
        assert_eq!(bytes[12..20], [0x88, 0xa8, 0x20, 0x64, 0x81, 0x00, 0x00, 0x07]);
    }
}
