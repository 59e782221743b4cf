use std::net::IpAddr;
use std::path::Path;

use bgp::Community;

use super::super::decision::Why;
use super::*;

fn plan(machine: &str, announce: &str) -> Plan {
    let text = format!(
        "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n\
         [machine.lb1]\nshard = \"s\"\naddresses = [\"192.0.2.1\", \"2001:db8::1\"]\ninterfaces = [\"eth0\"]\n\
         [machine.lb2]\nshard = \"s\"\naddresses = [\"192.0.2.3\"]\ninterfaces = [\"eth0\"]\n\
         [bgp]\nasn = 65101\nlisten = [\"192.0.2.1:179\"]\ngraceful_shutdown_prepend = 3\n\
         [[bgp.peers]]\nname = \"t1\"\naddress = \"192.0.2.0\"\nasn = 65000\nnext_hop6 = \"2001:db8::1\"\nbfd = {{}}\nhold_time = \"600s\"\n\
         [[bgp.peers]]\nname = \"t2\"\naddress = \"192.0.2.2\"\nasn = 65000\nmachines = [\"lb1\"]\nfamilies = [\"ipv4\"]\n\
         [pool.p]\nbackends = [{{ name = \"b\", address = \"198.18.0.1\" }}]\n{announce}"
    );
    let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
    let (config, _) = config::parse(&text, Path::new("a.toml"), &secret).unwrap_or_else(|p| panic!("{p}"));
    Plan::new(&config, config.machine(machine).unwrap())
}

fn vip(name: &str, address: &str, announce: &str) -> String {
    format!(
        "[vip.{name}]\naddresses = [\"{address}\"]\nservices = [{{ ports = [80], protocol = \"tcp\", pool = \"p\" }}]\n{announce}\n"
    )
}

fn shown(names: &[&str]) -> BTreeMap<Arc<str>, VipStatus> {
    names.iter().map(|name| (Arc::from(*name), VipStatus::Announced)).collect()
}

fn announced(desired: &Desired, peer: &str) -> Vec<String> {
    desired.of(peer).iter().map(|(prefix, _)| prefix.to_string()).collect()
}

#[test]
fn each_peer_receives_the_routes_of_its_vips() {
    let text = vip("a", "203.0.113.1", "announce = { peers = [\"t2\"] }")
        + &vip("b", "203.0.113.2", "announce = {}")
        + &vip("c", "203.0.113.3", "");
    let plan = plan("lb1", &text);
    let all = shown(&["a", "b", "c"]);
    let desired = plan.desired(&all, Stage::Serving, &BTreeSet::new());
    assert_eq!(announced(&desired, "t1"), ["203.0.113.2/32"]);
    assert_eq!(announced(&desired, "t2"), ["203.0.113.1/32", "203.0.113.2/32"]);
    assert!(plan.desired(&shown(&["a"]), Stage::Serving, &BTreeSet::new()).of("t1").is_empty());
    let gone = BTreeSet::from(["203.0.113.2/32".parse().unwrap()]);
    assert!(plan.desired(&all, Stage::Serving, &gone).of("t1").is_empty());
    assert!(!plan.rules["c"].announced && plan.rules["a"].heard);
    let other = super::tests::plan("lb2", &text);
    assert!(other.rules["a"].announced && !other.rules["a"].heard, "lb2 has no session with t2");
    assert_eq!(plan.peers.iter().map(|peer| peer.connect).collect::<Vec<_>>(), [Connect::Both; 2]);
    assert_eq!(other.peers[0].connect, Connect::Dial, "the listening address belongs to lb1");
    assert!(plan.peers.iter().all(|peer| peer.check().is_ok()), "valid with a long hold time");
    assert_eq!(plan.bfd.keys().collect::<Vec<_>>(), [&IpAddr::from([192, 0, 2, 0])]);
}

#[test]
fn shared_route_is_announced_while_one_vip_qualifies() {
    let aggregate = "announce = { aggregates = [\"203.0.113.0/24\"] }";
    let plan = plan("lb1", &(vip("a", "203.0.113.1", aggregate) + &vip("b", "203.0.113.2", aggregate)));
    for (names, count) in [(&["a", "b"][..], 1), (&["a"], 1), (&["b"], 1), (&[], 0)] {
        let desired = plan.desired(&shown(names), Stage::Serving, &BTreeSet::new());
        assert_eq!(desired.of("t1").len(), count, "{names:?}");
    }
}

#[test]
fn shared_route_is_marked_while_no_vip_is_announced_without_mark() {
    let aggregate = "announce = { aggregates = [\"203.0.113.0/24\"], med = 7 }";
    let plan = plan("lb1", &(vip("a", "203.0.113.1", aggregate) + &vip("b", "203.0.113.2", aggregate)));
    let marked = || VipStatus::Marked(Why::Forwarder("stalled".into()));
    for (a, b, is_marked) in [
        (marked(), VipStatus::Withdrawn(Why::Unknown), true),
        (marked(), marked(), true),
        (VipStatus::Announced, marked(), false),
    ] {
        let statuses = BTreeMap::from([("a".into(), a), ("b".into(), b)]);
        let desired = plan.desired(&statuses, Stage::Serving, &BTreeSet::new());
        let (_, attributes) = desired.of("t1").iter().next().unwrap();
        assert_eq!(attributes.communities == [Community::GRACEFUL_SHUTDOWN], is_marked, "{statuses:?}");
        assert_eq!(attributes.med, Some(if is_marked { u32::MAX } else { 7 }));
        assert!(plan.desired(&statuses, Stage::Left, &BTreeSet::new()).of("t1").is_empty());
    }
}

#[test]
fn peer_receives_only_routes_of_its_address_families() {
    let plan = plan("lb1", &vip("a", "2001:db8:f::1", "announce = {}"));
    let desired = plan.desired(&shown(&["a"]), Stage::Serving, &BTreeSet::new());
    assert_eq!((announced(&desired, "t1").len(), announced(&desired, "t2").len()), (1, 0));
    // The configuration is accepted, because another machine has a peer that accepts the routes.
    let elsewhere = "announce = { peers = [\"t2\", \"t3\"] }\n[[bgp.peers]]\nname = \"t3\"\naddress = \"2001:db8::9\"\n\
                     asn = 65000\nmachines = [\"lb2\"]";
    let deaf = super::tests::plan("lb1", &vip("a", "2001:db8:f::1", elsewhere));
    assert!(!deaf.rules["a"].heard);
}

#[test]
fn separately_checked_families_announce_separate_routes() {
    let both = "addresses = [\"203.0.113.1\", \"2001:db8:f::1\"]";
    let of = |machine: &str, pool: &str| {
        let text = vip("a", "203.0.113.1", "announce = {}").replace("addresses = [\"203.0.113.1\"]", both);
        let backends = "backends = [{ name = \"c\", address = \"198.18.0.2\" }]";
        let pool =
            format!("[pool.q]\n{pool}\n{backends}\n[check.vip]\ntcp = {{ port = 80 }}\nvia = \"vip\"\n");
        super::tests::plan(machine, &(text + &pool).replace("pool = \"p\"", "pool = \"q\""))
    };
    let names = |plan: &Plan| plan.rules.keys().map(ToString::to_string).collect::<Vec<_>>();
    let apart = of("lb1", "checks = [\"vip\"]");
    assert_eq!(names(&apart), ["a IPv4", "a IPv6"]);
    assert_eq!(names(&of("lb1", "")), ["a"]);
    assert_eq!(names(&of("lb2", "checks = [\"vip\"]")), ["a"], "lb2 has no IPv6 address for checks");
    let announced_with =
        |names: &[&str]| announced(&apart.desired(&shown(names), Stage::Serving, &BTreeSet::new()), "t1");
    assert_eq!(announced_with(&["a IPv4"]), ["203.0.113.1/32"]);
    assert_eq!(announced_with(&["a IPv6"]), ["2001:db8:f::1/128"]);
}

#[test]
fn backup_machine_has_higher_med_than_the_others() {
    let med = |machine: &str, announce: &str| {
        let plan = plan(machine, &vip("a", "203.0.113.1", announce));
        (plan.rules["a"].backup, plan.routes.values().next().unwrap().attributes.med)
    };
    let pair = "announce = { backups = [\"lb2\"] }";
    assert_eq!((med("lb1", pair), med("lb2", pair)), ((false, Some(0)), (true, Some(1_000))));
    let pair = "announce = { backups = [\"lb2\"], med = 50 }";
    assert_eq!((med("lb1", pair), med("lb2", pair)), ((false, Some(50)), (true, Some(1_050))));
    assert_eq!(med("lb1", "announce = {}"), (false, None));
}

#[test]
fn drain_marks_every_route_and_then_withdraws_it() {
    let says = "announce = { communities = [\"65101:1\"], prepend = 1 }";
    let plan = plan("lb1", &vip("a", "203.0.113.1", says));
    let desired = plan.desired(&shown(&["a"]), Stage::Leaving, &BTreeSet::new());
    let (_, attributes) = desired.of("t1").iter().next().unwrap();
    assert_eq!(attributes.communities, [Community(65_101, 1), Community::GRACEFUL_SHUTDOWN]);
    assert_eq!((attributes.med, attributes.local_pref, attributes.prepend), (Some(u32::MAX), Some(0), 4));
    let desired = plan.desired(&shown(&["a"]), Stage::Left, &BTreeSet::new());
    assert!(desired.of("t1").is_empty() && desired.of("t2").is_empty());
}
