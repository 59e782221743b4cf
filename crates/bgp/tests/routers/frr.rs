//! Tests against FRR.

use bgp::bfd::{Bfd, BfdConfig, BfdPorts};
use bgp::{Attributes, Blocked, Family, GracefulRestart};
use testbed::{Bed, Router, RouterKind, RouterSession, router_config};

use crate::bed::*;

/// Starts FRR with IPv4 and IPv6 sessions to two machines.
fn start(bed: &Bed, more: &str) -> Router {
    let config = router_config(RouterKind::Frr, &RouterSession::all());
    Router::start_with(bed, RouterKind::Frr, &(config + more)).unwrap()
}

fn start_without_bfd(bed: &Bed, session: &RouterSession) -> Router {
    let text = router_config(RouterKind::Frr, &[*session]);
    let without_bfd: String =
        text.lines().filter(|line| !line.contains("bfd profile")).map(|line| format!("{line}\n")).collect();
    Router::start_with(bed, RouterKind::Frr, &without_bfd).unwrap()
}

fn machine(bed: &Bed, n: u8, restart: Option<GracefulRestart>) -> Running {
    let sessions = [true, false].map(|ipv4| RouterSession::new(n, ipv4));
    let peers = sessions.map(|session| {
        let mut config = peer(&session);
        config.graceful_restart = restart;
        config
    });
    let running = Running::start_with(bed, &sessions[0], peers.to_vec());
    running.speaker.announce(table(&[VIP_V4, VIP_V6], &Attributes::default()));
    running
}

#[test]
fn frr_drops_the_next_hop_of_a_drained_or_dead_machine() {
    let bed = bed(2);
    let frr = start(&bed, "");
    let (first, second) = (machine(&bed, 1, None), machine(&bed, 2, None));
    for prefix in [VIP_V4, VIP_V6] {
        wait_for_next_hops(&bed, prefix, 2);
    }
    // The router receives the routes of the draining machine but does not prefer them.
    let all = second.speaker.announced();
    second.speaker.announce(all.graceful_shutdown());
    for prefix in [VIP_V4, VIP_V6] {
        wait_for_next_hops(&bed, prefix, 1);
    }
    frr.until(&format!("show bgp ipv4 unicast {VIP_V4}"), |text| text.contains("graceful-shutdown")).unwrap();
    second.speaker.announce((*all).clone());
    for prefix in [VIP_V4, VIP_V6] {
        wait_for_next_hops(&bed, prefix, 2);
    }
    // The speaker is dropped without a NOTIFICATION, so the kernel closes its connections.
    drop(second);
    for prefix in [VIP_V4, VIP_V6] {
        wait_for_next_hops(&bed, prefix, 1);
    }
    first.shutdown("rack 7 moves");
    for prefix in [VIP_V4, VIP_V6] {
        wait_for_next_hops(&bed, prefix, 0);
    }
    frr.until("show bgp neighbors 192.0.2.1", |text| {
        text.contains("Notification received (Cease/Administrative Shutdown)")
    })
    .unwrap();
}

#[test]
fn shutdown_with_graceful_restart_leaves_no_stale_route() {
    let bed = bed(1);
    let frr = start(&bed, "router bgp 65000\n bgp graceful-restart\n");
    let restart = GracefulRestart { seconds: 600, restarting: false, forwarding: true };
    let lb = machine(&bed, 1, Some(restart));
    wait_for_next_hops(&bed, VIP_V4, 1);
    assert!(lb.established("r4lb1").negotiated.unwrap().hard_reset, "FRR supports the N bit");
    lb.shutdown("");
    wait_for_next_hops(&bed, VIP_V4, 0);
    let text = frr.until("show bgp ipv4 unicast", |_| true).unwrap();
    assert!(!text.contains("203.0.113.10"), "stale:\n{text}");
}

#[test]
fn bfd_comes_up_with_frr_and_does_not_flap() {
    let bed = bed(1);
    let frr = start(&bed, "");
    let lb = machine(&bed, 1, None);
    let (changes, heard) = std::sync::mpsc::channel();
    let watch = bed.balancers[0]
        .ns
        .run(move || Bfd::start(BfdPorts::default(), move |change| drop(changes.send(change))).unwrap());
    for (name, address) in [("v4", "192.0.2.0"), ("v6", "2001:db8:0:1::ff")] {
        watch.add(patient(BfdConfig::new(name, address.parse().unwrap()))).unwrap();
    }
    lb.established("r4lb1");
    lb.established("r6lb1");
    // The session with FRR would flap forever if this side did not apply a shorter interval
    // immediately.
    wait_for_calm(&watch, &heard);
    frr.until("show bfd peers brief", |text| text.matches("up").count() >= 2).unwrap();
    let losses = watch.status().values().map(|status| status.losses).sum::<u64>();
    println!("losses while FRR starts: {losses}; BGP sessions: {}", lb.established("r4lb1").established);
    drop(watch);
    frr.until("show bfd peers", |text| text.contains("Remote diagnostics: administratively down")).unwrap();
}

#[test]
fn family_not_activated_in_frr_is_not_announced() {
    let bed = bed(1);
    let session = RouterSession::new(1, false);
    let frr = start_without_bfd(&bed, &session);
    let mut config = peer(&session);
    config.families = Family::ALL.to_vec();
    config.next_hops.v4 = Some(bed.balancers[0].v4);
    let lb = Running::start_with(&bed, &session, vec![config]);
    lb.speaker.announce(table(&[VIP_V4, VIP_V6], &Attributes::default()));
    wait_for_next_hops(&bed, VIP_V6, 1);
    let status = lb.until(&session.name(), |status| !status.routes.is_empty() && status.counts.pending == 0);
    assert_eq!(status.routes.iter().map(|(prefix, _)| prefix.to_string()).collect::<Vec<_>>(), [VIP_V6]);
    assert_eq!(status.blocked, [(Family::Ipv4, Blocked::NotNegotiated)].into());
    assert_eq!(status.negotiated.unwrap().refused, ["ipv4 unicast"]);
    assert_eq!(bed.next_hops(VIP_V4), 0, "{}", frr.tail());
}

#[test]
fn frr_session_restart_for_families_is_fast() {
    let bed = bed(1);
    let session = RouterSession::new(1, true);
    let _frr = start_without_bfd(&bed, &session);
    let mut config = peer(&session);
    let lb = Running::start_with(&bed, &session, vec![config.clone()]);
    lb.speaker.announce(table(&[VIP_V4], &Attributes::default()));
    wait_for_next_hops(&bed, VIP_V4, 1);
    for (round, families) in [(2, Family::ALL.to_vec()), (3, vec![Family::Ipv4])] {
        config.families = families;
        assert!(lb.speaker.set_peers(vec![config.clone()]).is_empty());
        let is_new = || lb.speaker.status()[&session.name()].established == round;
        println!("FRR: without the route for {:?} at most", gap(&bed, VIP_V4, is_new));
    }
}
