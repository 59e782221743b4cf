use super::*;
use crate::view::ServiceRow;

fn link(name: &str, link: bool) -> InterfaceRow {
    InterfaceRow { name: name.to_owned(), link, ..InterfaceRow::default() }
}

fn machine(interfaces: &[InterfaceRow]) -> Machine {
    let mut machine = Machine { set_up: true, ..Machine::default() };
    machine.take_links(interfaces);
    machine
}

fn well() -> Machine {
    machine(&[link("eth0", true)])
}

fn announced(peers: &[&str], missing: Option<&str>) -> VipState {
    let peers: Vec<String> = peers.iter().map(|&peer| peer.to_owned()).collect();
    let is_announced = !peers.is_empty();
    let announcement = Announcement { peers, is_announced, missing: missing.map(str::to_owned) };
    VipState { unserved: None, announcement: Some(announcement) }
}

fn unserved(state: VipState) -> VipState {
    VipState { unserved: Some("no backend for dl tcp 80".to_owned()), ..state }
}

const HELD: &str = "flap damping, 134 s left";
const FEW: &str = "service \"dl tcp 80\" has 0 of 1 required backends";
const UNFOUND: &str = "no VIP is announced to a router";

/// The states of the VIPs `www` and `dl`, and the reasons why the machine, `www` and `dl` are not
/// ready.
type Case<'a> = (&'a str, Machine, [VipState; 2], [&'a [&'a str]; 3]);

// Promise: readiness
#[test]
fn readiness_of_machine_and_vips() {
    let up = || announced(&["r1"], None);
    let held = || announced(&[], Some(HELD));
    let stuck = || Machine { fault: Some("packet thread 0 is stuck".to_owned()), ..well() };
    let down = || machine(&[link("eth0", false)]);
    let draining = Machine { draining: true, ..well() };
    let starting = Machine { set_up: false, ..well() };
    let one_link = machine(&[link("eth0", false), link("eth1", true)]);
    let no_link = machine(&[link("eth0", false), link("eth1", false)]);
    let no_v6 = "IPv6: peer r1 did not negotiate IPv6";
    let cases: [Case<'_>; 14] = [
        ("all is well", well(), [up(), up()], [&[], &[], &[]]),
        ("no VIP is to be announced", well(), [VipState::default(), VipState::default()], [&[], &[], &[]]),
        (
            "all VIPs are held down",
            well(),
            [held(), held()],
            [
                &[UNFOUND],
                &["not announced: www, flap damping, 134 s left"],
                &["not announced: dl, flap damping, 134 s left"],
            ],
        ),
        ("no peer accepts the routes of a VIP", well(), [up(), VipState::default()], [&[], &[], &[]]),
        (
            "one VIP is held down",
            well(),
            [up(), held()],
            [&[], &[], &["not announced: dl, flap damping, 134 s left"]],
        ),
        (
            "the only interface is down",
            down(),
            [up(), up()],
            [
                &["eth0 down or without carrier"],
                &["eth0 down or without carrier"],
                &["eth0 down or without carrier"],
            ],
        ),
        ("one of two interfaces is down", one_link, [up(), up()], [&[], &[], &[]]),
        (
            "both interfaces are down",
            no_link,
            [VipState::default(), VipState::default()],
            [&["eth0, eth1 down or without carrier"]; 3],
        ),
        (
            "a new VIP has no backend",
            well(),
            [up(), unserved(announced(&[], Some(FEW)))],
            [
                &[],
                &[],
                &[
                    "not serving: dl, no backend for dl tcp 80",
                    "not announced: dl, service \"dl tcp 80\" has 0 of 1 required backends",
                ],
            ],
        ),
        (
            "a new VIP has no backend, without BGP",
            well(),
            [VipState::default(), unserved(VipState::default())],
            [&[], &[], &["not serving: dl, no backend for dl tcp 80"]],
        ),
        (
            "one address family is not announced",
            well(),
            [up(), announced(&["r1"], Some(no_v6))],
            [&[], &[], &["not announced: dl, IPv6: peer r1 did not negotiate IPv6"]],
        ),
        ("a thread is stuck", stuck(), [up(), up()], [&["packet thread 0 is stuck"]; 3]),
        ("the machine drains", draining, [up(), up()], [&["draining"]; 3]),
        (
            "the process starts",
            starting,
            [up(), up()],
            [&["waiting for the first results of health checks"]; 3],
        ),
    ];
    for (case, machine, [www, dl], [of_machine, of_www, of_dl]) in cases {
        let readiness = Readiness::of(&machine, [("www".to_owned(), www), ("dl".to_owned(), dl)].into());
        assert_eq!(
            (readiness.not_ready(), readiness.is_ready()),
            (of_machine.iter().map(|why| (*why).to_owned()).collect(), of_machine.is_empty()),
            "{case}"
        );
        for (vip, why) in [("www", of_www), ("dl", of_dl)] {
            assert_eq!(readiness.vip_not_ready(vip).unwrap(), why, "{case}, {vip}");
            assert_eq!(readiness.vips_not_ready().any(|name| name == vip), !why.is_empty(), "{case}, {vip}");
        }
        assert_eq!(readiness.vip_not_ready("other"), None);
    }
}

#[test]
fn rows_have_the_readiness_of_their_vip() {
    let vips = [
        ("www".to_owned(), announced(&["r1", "r2"], None)),
        ("dl".to_owned(), unserved(VipState::default())),
    ];
    let readiness = Readiness::of(&well(), vips.into());
    let row = |name: &str| VipRow {
        name: name.to_owned(),
        addresses: Vec::new(),
        ready: false,
        not_ready: Vec::new(),
        serving: true,
        announced_to: None,
        services: Vec::<ServiceRow>::new(),
    };
    let mut rows = [row("www"), row("dl")];
    readiness.fill(&mut rows);
    assert_eq!(
        (rows[0].ready, rows[0].announced_to.as_deref()),
        (true, Some(&["r1".to_owned(), "r2".to_owned()][..]))
    );
    assert_eq!((rows[1].ready, &rows[1].announced_to), (false, &None));
    assert_eq!(rows[1].not_ready, ["not serving: dl, no backend for dl tcp 80"]);
}

#[test]
fn faults_of_a_limited_number_of_vips_are_named() {
    let vips = (0..12).map(|n| (format!("v{n:02}"), announced(&[], Some(HELD)))).collect();
    let faults = Readiness::of(&well(), vips).vip_faults(10);
    assert_eq!(
        (faults.len(), &*faults[9], &*faults[10]),
        (11, "not announced: v09, flap damping, 134 s left", "and 2 more VIPs")
    );
}
