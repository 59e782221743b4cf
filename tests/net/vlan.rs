//! Clients behind VLAN tags: what comes back to the link that they came from is tagged as they were.

use testbed::{Bed, Capture, Encapsulation, Frame, LbConfig, inject};

use crate::scene::{BOUND, Scene};

fn comes_back_tagged(kind: Encapsulation) {
    let scene = Scene::with(|bed| LbConfig::new(bed).encapsulation(kind));
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
            let seen =
                back.wait_for(sent, BOUND).unwrap_or_else(|e| panic!("{e:#} {spec:?}\n{}", scene.told()));
            let bytes = &seen[sent - 1].bytes;
            let frame = Frame::parse(bytes).unwrap();
            assert_eq!((frame.to, frame.from, &frame.vlans), (spec.from, spec.to, &spec.vlans));
            let link = 14 + 4 * spec.vlans.len();
            // All but the last two bytes before the packet, which name its family: the outer one's is IPv4.
            assert_eq!(bytes[12..link - 2], spec.bytes()[12..link - 2], "tags, their types too");
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
fn frames_with_one_tag_or_two_are_encapsulated_by_gre_behind_the_same_tags() {
    comes_back_tagged(Encapsulation::Gre);
}

#[test]
fn frames_with_one_tag_or_two_are_encapsulated_by_gue_behind_the_same_tags() {
    comes_back_tagged(Encapsulation::Gue);
}
