//! Tests of two balancers that receive fragments of the same datagrams.

use std::collections::BTreeSet;

use testbed::{Balancer, BedSpec, LbConfig, Received, UdpInbox, eventually, mac_of, send_at};

use crate::fragments::{Random, WINDOW, cut_datagram, have_had, inboxes, shuffle, with_inbox};
use crate::scene::{BOUND, Scene, count};

/// Sends each fragment to a random balancer, like a router that balances per packet.
fn pieces_to_either(ipv4: bool) {
    let spec = BedSpec { balancers: 2, queues: 2, ..BedSpec::default() };
    let mut file = None;
    let scene = Scene::new(&spec, |bed| {
        let config = with_inbox(bed);
        file = Some(config.clone());
        config
    });
    let config: LbConfig = file.unwrap();
    let second = Balancer::start(&scene.bed, 1, &config).unwrap();
    let inboxes = inboxes(&scene, ipv4);
    let (mut random, datagrams) = (Random::new(11), count(2_000, 20_000));
    let (cut, expected): (Vec<_>, BTreeSet<Received>) =
        (0..datagrams).map(|n| cut_datagram(&scene, ipv4, n, &mut random)).unzip();
    let hosts = &scene.bed.balancers;
    let theirs = mac_of(&hosts[1].ns, hosts[1].device).unwrap();
    for (n, window) in (1..).zip(cut.chunks(WINDOW)) {
        let mut to: [Vec<Vec<u8>>; 2] = Default::default();
        for mut piece in shuffle(window, &mut random) {
            let which = random.below(2);
            if which == 1 {
                piece[..6].copy_from_slice(&theirs);
            }
            to[which].push(piece);
        }
        for (frames, host) in to.into_iter().zip(hosts) {
            send_at(&scene.bed.router, &host.port, frames, 20_000.0).unwrap();
        }
        // The test waits after each group of packets, so that the packets in flight fit into a
        // ring.
        have_had(&inboxes, n * WINDOW);
    }
    let all = have_had(&inboxes, datagrams);
    let counted = || {
        let both = [scene.settled(), second.counters().unwrap()];
        let of = |name| both.each_ref().map(|counts| counts.over_threads(&[name]));
        let (redirected, opened) = (of("redirected"), of("decapsulated"));
        (both, redirected, opened)
    };
    // The last packets may still be on the way from one balancer to the other.
    let agreed = eventually(BOUND, || {
        let (_, [first, second], opened) = counted();
        ([second, first] == opened).then_some(())
    });
    let ([first, second], redirected, opened) = counted();
    println!(
        "{datagrams} datagrams to two balancers, {redirected:?} fragments redirected, {opened:?} decapsulated"
    );
    assert_eq!((first.drops(), second.drops()), (vec![], vec![]), "{}", scene.diagnosis());
    assert!(
        agreed.is_some() && [redirected[1], redirected[0]] == opened,
        "redirected and decapsulated fragments differ"
    );
    assert!(redirected.iter().all(|count| *count > datagrams as u64 / 4));
    assert!(all, "{}", scene.diagnosis());
    let seen: Vec<Received> = inboxes.iter().flat_map(UdpInbox::seen).collect();
    let whole: BTreeSet<Received> = seen.iter().copied().collect();
    assert_eq!((whole.len(), whole == expected), (datagrams, true));
}

#[test]
fn fragments_on_two_machines_meet_over_ipv4() {
    pieces_to_either(true);
}

#[test]
fn fragments_on_two_machines_meet_over_ipv6() {
    pieces_to_either(false);
}
