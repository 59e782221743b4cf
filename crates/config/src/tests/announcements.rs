//! Tests of `[bgp]`, of `announce` in a VIP, and of `router_id` in a machine: defaults, values and
//! errors.

use ::bgp::{Community, Family, LargeCommunity};

use super::*;
use crate::Config;

/// Returns a configuration with two machines, a pool of two backends, and two VIPs that share an
/// aggregate. `announce` is added to the first VIP.
fn text(bgp: &str, announce: &str) -> String {
    with_pools(&format!(
        "[machine.lb2]\naddresses = [\"2001:db8::2\"]\ninterfaces = [\"eth0\"]\nrouter_id = \"192.0.2.2\"\n\
         [pool.p]\nbackends = [{{ name = \"b1\", address = \"2001:db8:18::1\" }}, {{ name = \"b2\", address = \"2001:db8:18::2\" }}]\n\
         [vip.a]\naddresses = [\"203.0.113.1\"]\n\
         services = [{{ ports = [80], protocol = \"tcp\", pool = \"p\" }}]\n{announce}\n{bgp}\n"
    ))
}

const PEER: &str = "[bgp]\nasn = 65101\npeers = [{ address = \"192.0.2.0\", asn = 65000 }]";
const ALL: &str = "announce = {}";

fn config(bgp: &str, announce: &str) -> Config {
    let (config, warnings) = parsed(&text(bgp, announce)).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(warnings.to_string(), "");
    config
}

/// Returns the only problem of a configuration.
fn problem(bgp: &str, announce: &str) -> Problem {
    let problems = match parsed(&text(bgp, announce)) {
        Ok((_, warnings)) => warnings,
        Err(problems) => problems,
    };
    let all: Vec<_> = problems.iter().collect();
    assert_eq!(all.len(), 1, "{problems}");
    assert!(all[0].line().is_some());
    all[0].clone()
}

fn refused(bgp: &str, announce: &str, wanted: [&str; 3]) {
    let found = problem(bgp, announce);
    assert_eq!(found.field, wanted[0], "{found:?}");
    assert!(says(&found, wanted[1], wanted[2]), "{found:?}");
}

#[test]
fn what_is_absent_has_the_documented_values() {
    let config = config(PEER, ALL);
    let bgp = config.bgp().unwrap();
    assert_eq!(bgp.graceful_restart.as_secs(), 0);
    let times =
        [bgp.graceful_shutdown, bgp.hold_down, bgp.max_hold_down, bgp.hold_down_half_life, bgp.max_stall];
    assert_eq!(times.map(|time| time.as_secs()), [5, 10, 300, 120, 3]);
    assert_eq!((bgp.asn, bgp.backup_med, bgp.graceful_shutdown_prepend), (65_101, 1_000, 0));
    assert!(bgp.listen.is_empty());
    let peer = &bgp.peers[0];
    assert_eq!((&*peer.name, peer.asn, peer.port), ("192.0.2.0", 65_000, 179));
    assert!(peer.md5.is_none() && peer.hops.is_none() && peer.source.is_none() && peer.bfd.is_none());
    assert!(!peer.passive && !peer.next_hops.extended && peer.max_prefixes.is_none());
    assert_eq!((&*peer.families, peer.next_hops.v4, peer.next_hops.v6), (&Family::ALL[..], None, None));
    assert_eq!((peer.hold_time.as_secs(), peer.max_retry.as_secs()), (90, 60));
    let says = config.vips()[0].announce.as_ref().unwrap();
    assert_eq!((says.min_serving, says.return_serving, says.remotes), (1, 1, true));
    assert_eq!(&says.attributes, &::bgp::Attributes::default());
    assert!(says.is_for("192.0.2.0") && says.backups.is_empty());
    let ids = config.machines().iter().map(|machine| machine.router_id().unwrap().to_string());
    assert_eq!(ids.collect::<Vec<_>>(), ["192.0.2.1", "192.0.2.2"]);
    let silent = super::parsed(&text("", "")).unwrap().0;
    assert!(
        silent.bgp().is_none() && silent.vips()[0].announce.is_none() && silent.vips()[0].routes().is_empty()
    );
}

#[test]
fn values_arrive() {
    let bgp = "[bgp]\nasn = 4200000000\nlisten = [\"192.0.2.1:179\"]\ngraceful_shutdown = \"0s\"\nhold_down = \"1s\"\n\
               max_hold_down = \"2s\"\nhold_down_half_life = \"1s\"\nmax_stall = \"500ms\"\n\
               graceful_shutdown_prepend = 16\nbackup_med = 7\n[[bgp.peers]]\naddress = \"192.0.2.0\"\nasn = 65000\nname = \"tor\"\n\
               machines = [\"lb1\"]\nport = 1179\npassword_file = \"k\"\nhops = 1\npassive = true\nsource = \"192.0.2.1\"\n\
               families = [\"ipv6\", \"ipv4\"]\nnext_hop4 = \"192.0.2.9\"\nnext_hop6 = \"2001:db8::9\"\n\
               hold_time = \"9s\"\nmax_retry = \"2s\"\nmax_prefixes = 5\nbfd = { interval = \"50ms\", multiplier = 5 }\n\
               [[bgp.peers]]\naddress = \"2001:db8::3\"\nasn = 4200000000\nmachines = [\"lb2\"]\nextended_next_hop = true";
    // The VIP has addresses of both families.
    let text = text(
        bgp,
        "announce = { min_serving = 2, return_serving = 2, communities = [\"65101:10\"], large_communities = [\"1:2:3\"], med = 5, \
         local_pref = 6, prepend = 3, peers = [\"tor\", \"2001:db8:0::3\"], backups = [\"lb2\"], aggregates = [\"203.0.113.0/24\"] }",
    );
    let text = text.replace("[\"203.0.113.1\"]", "[\"203.0.113.1\", \"2001:db8:f::1\"]");
    let (config, warnings) = parsed(&text).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(warnings.to_string(), "");
    let bgp = config.bgp().unwrap();
    assert_eq!((bgp.asn, bgp.backup_med, bgp.listen.len()), (4_200_000_000, 7, 1));
    assert_eq!((bgp.hold_down_half_life.as_secs(), bgp.max_stall.as_millis()), (1, 500));
    assert_eq!(bgp.graceful_shutdown_prepend, 16);
    let names =
        |machine| bgp.peers_of(machine).map(|peer| &peer.name).map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!((names("lb1"), names("lb2")), (vec!["tor".to_owned()], vec!["2001:db8::3".to_owned()]));
    let tor = &bgp.peers[0];
    assert_eq!((tor.port, tor.hops, tor.passive, tor.max_prefixes), (1_179, Some(1), true, Some(5)));
    assert_eq!(tor.md5.as_ref(), Some(&::bgp::Md5Key::new(KEY).unwrap()));
    assert_eq!(tor.families, Family::ALL);
    assert_eq!((tor.hold_time.as_secs(), tor.max_retry.as_secs()), (9, 2));
    assert_eq!(tor.bfd.map(|bfd| (bfd.interval.as_millis(), bfd.multiplier)), Some((50, 5)));
    assert!(!tor.next_hops.extended && bgp.peers[1].next_hops.extended);
    let says = config.vips()[0].announce.as_ref().unwrap();
    let attributes = &says.attributes;
    assert_eq!((attributes.med, attributes.local_pref, attributes.prepend), (Some(5), Some(6), 3));
    assert_eq!(attributes.communities, [Community(65_101, 10)]);
    assert_eq!(attributes.large_communities, [LargeCommunity(1, 2, 3)]);
    assert!(says.is_for("tor") && says.is_for("2001:db8::3") && !says.is_for("other") && !says.remotes);
    let routes: Vec<String> = config.vips()[0].routes().iter().map(ToString::to_string).collect();
    assert_eq!(routes, ["203.0.113.0/24", "2001:db8:f::1/128"]);
}

#[test]
fn a_vip_of_a_group_has_the_clusters_own_prefixes_as_routes() {
    let group = "[prefix_group.g]\nprefixes = [\"198.51.100.128/25\", \"2001:db8:e::/56\", \"198.51.100.0/25\"]\n\
                 [vip.b]\ngroup = \"g\"\nsuffixes = [\"0.0.0.20/7\", \"::20/72\"]\n\
                 services = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";
    let routes = |announce: &str| {
        let peer = PEER.replace("asn = 65000 }", "asn = 65000, next_hop6 = \"2001:db8::9\" }");
        let config = config(&format!("{group}{announce}\n{peer}"), "");
        config.vips()[1].routes().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(routes("announce = {}"), ["198.51.100.128/25", "2001:db8:e::/56"]);
    let wider = "announce = { aggregates = [\"198.51.100.0/24\"] }";
    assert_eq!(routes(wider), ["198.51.100.0/24", "2001:db8:e::/56"]);
}

#[test]
fn what_is_out_of_range_is_named_with_what_is_allowed() {
    let peer = |more: &str| {
        format!("[bgp]\nasn = 65101\npeers = [{{ address = \"192.0.2.0\", asn = 65000, {more} }}]")
    };
    for (more, wanted) in [
        ("hops = 0", ["bgp.peers[0].hops", "\"hops\" must be between 1 and 255, got 0", ""]),
        (
            "hold_time = \"2s\"",
            [
                "bgp.peers[0].hold_time",
                "\"hold_time\" must be \"0s\", or whole seconds of at least \"3s\", got \"2s\"",
                "",
            ],
        ),
        (
            "hold_time = \"3500ms\"",
            [
                "bgp.peers[0].hold_time",
                "\"hold_time\" must be \"0s\", or whole seconds of at least \"3s\", got \"3500ms\"",
                "",
            ],
        ),
        (
            "families = []",
            ["bgp.peers[0].families", "\"families\" must not be empty", "for example [\"ipv4\", \"ipv6\"]"],
        ),
        (
            "families = [\"ipv4\", \"ipv4\"]",
            ["bgp.peers[0].families[1]", "\"families\" lists \"ipv4\" twice", ""],
        ),
        (
            "source = \"2001:db8::1\"",
            [
                "bgp.peers[0].source",
                "source address 2001:db8::1 and the peer have different address families",
                "",
            ],
        ),
        (
            "next_hop4 = \"2001:db8::1\"",
            ["bgp.peers[0].next_hop4", "next_hop4 must be an IPv4 address, got 2001:db8::1", "use next_hop6"],
        ),
        (
            "machines = [\"lb3\"]",
            ["bgp.peers[0].machines[0]", "unknown machine \"lb3\"", "did you mean \"lb1\"?"],
        ),
        (
            "passive = true",
            [
                "bgp.peers[0].passive",
                "a passive peer needs addresses in bgp.listen",
                "add bgp.listen, or remove passive",
            ],
        ),
        (
            "bfd = { interval = \"1ms\" }",
            ["bgp.peers[0].bfd.interval", "\"interval\" must be between 10ms and 10s, got \"1ms\"", ""],
        ),
        (
            "keepalive = 1",
            [
                "bgp.peers[0].keepalive",
                "unknown key \"keepalive\" in bgp.peers[0]",
                "known keys: address, asn, bfd, extended_next_hop, families, hold_time, hops, machines, max_prefixes, max_retry, name, next_hop4, next_hop6, passive, password_file, port, source",
            ],
        ),
    ] {
        refused(&peer(more), ALL, wanted);
    }
    let two = "[bgp]\nasn = 65101\npeers = [{ address = \"192.0.2.0\", asn = 1 }, { address = \"192.0.2.0\", asn = 2, \
               machines = [\"lb2\"] }]";
    refused(
        two,
        ALL,
        [
            "bgp.peers[1]",
            "machine \"lb2\" has two peers with the address 192.0.2.0",
            "the first peer is bgp.peers[0] on line 19",
        ],
    );
    refused(
        "[bgp]\nasn = 23456\npeers = [{ address = \"192.0.2.0\", asn = 1 }]",
        ALL,
        ["bgp.asn", "AS number 23456 is reserved", "use the number of your AS"],
    );
    refused(
        "[bgp]\nasn = 1",
        ALL,
        [
            "bgp.peers",
            "[bgp] needs a \"peers\" key",
            "\"peers\" is a list of routers, for example peers = [{ address = \"192.0.2.0\", asn = 65000 }]",
        ],
    );
    refused(
        &PEER.replace("peers", "hold_down = \"10m\"\nmax_hold_down = \"1m\"\npeers"),
        ALL,
        ["bgp.max_hold_down", "\"max_hold_down\" must be between 10m and 24h, got \"1m\"", ""],
    );
}

#[test]
fn what_an_announcement_says_is_checked_against_the_rest() {
    for (announce, wanted) in [
        (
            "announce = { min_serving = 3 }",
            [
                "vip.a.announce.min_serving",
                "VIP \"a\" needs 3 serving backends, but pool \"p\" has 2",
                "reduce the number to 2 or less, or add backends to the pool",
            ],
        ),
        (
            "announce = { min_serving = 2, return_serving = 1 }",
            ["vip.a.announce.return_serving", "\"return_serving\" must be between 2 and 65535, got 1", ""],
        ),
        (
            "announce = { min_serving = 2, remotes = true }",
            ["vip.a.announce.remotes", "`remotes = true` needs min_serving = 1", "set remotes = false"],
        ),
        (
            "announce = { communities = [\"1:2:3\"] }",
            [
                "vip.a.announce.communities[0]",
                "\"communities[0]\" must be a community of two numbers up to 65535, got \"1:2:3\"",
                "for example \"65101:10\"",
            ],
        ),
        (
            "announce = { peers = [\"192.0.2.5\"] }",
            ["vip.a.announce.peers[0]", "unknown peer \"192.0.2.5\"", "did you mean \"192.0.2.0\"?"],
        ),
        (
            "announce = { backups = [\"lb9\"] }",
            ["vip.a.announce.backups[0]", "unknown machine \"lb9\"", "did you mean \"lb1\"?"],
        ),
        (
            "announce = { aggregates = [\"198.51.100.0/24\"] }",
            [
                "vip.a.announce.aggregates[0]",
                "aggregate 198.51.100.0/24 contains no address of VIP \"a\"",
                "",
            ],
        ),
        (
            "announce = { aggregates = [\"203.0.113.1/24\"] }",
            [
                "vip.a.announce.aggregates[0]",
                "prefix \"203.0.113.1/24\" has host bits set",
                "write \"203.0.113.0/24\"",
            ],
        ),
        (
            "announce = { prepend = 17 }",
            ["vip.a.announce.prepend", "\"prepend\" must be between 0 and 16, got 17", ""],
        ),
    ] {
        refused(PEER, announce, wanted);
    }
    refused(
        "",
        ALL,
        [
            "vip.a.announce",
            "no BGP peer can receive this announcement",
            "add a section [bgp] with peers, or remove announce",
        ],
    );
    refused(
        PEER,
        "",
        [
            "bgp",
            "no VIP is announced to these peers",
            "add announce = {} to a VIP, or remove the section [bgp]",
        ],
    );
    let other = "announce = { aggregates = [\"203.0.113.0/24\"], med = 1 }\n[vip.b]\naddresses = [\"203.0.113.2\"]\n\
                 services = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\nannounce = { aggregates = [\"203.0.113.0/24\"] }";
    refused(
        PEER,
        other,
        [
            "vip.b.announce",
            "VIP \"a\" announces 203.0.113.0/24 with different settings",
            "VIPs that share a route need the same communities, med, local_pref, prepend, peers and backups",
        ],
    );
    config(PEER, &other.replace(", med = 1", ", min_serving = 2"));
}

#[test]
fn without_an_address_of_ipv4_a_machine_needs_an_identifier() {
    let text = text(PEER, ALL).replace("router_id = \"192.0.2.2\"\n", "");
    let problems = parsed(&text).unwrap_err();
    let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(fields, ["machine.lb2.router_id"]);
}

#[test]
fn a_key_that_others_can_read_is_refused_and_never_shown() {
    let folder = files::Folder::new();
    let text = text(&PEER.replace("asn = 65000", "asn = 65000, password_file = \"bgp.key\""), ALL);
    let path = folder.write("a.toml", text, 0o644);
    folder.write("k", KEY, 0o600);
    folder.write("bgp.key", "s3cret\n", 0o644);
    let problems = all_printed(&load(&path).unwrap_err());
    assert!(
        problems.contains("can be read by other users") && problems.contains("bgp.peers[0].password_file"),
        "{problems}"
    );
    folder.write("bgp.key", "s3cret\n", 0o600);
    let (config, _) = load(&path).unwrap();
    assert_eq!(config.bgp().unwrap().peers[0].md5.as_ref(), Some(&::bgp::Md5Key::new("s3cret").unwrap()));
    assert!(!format!("{config:?}").contains("s3cret"));
    folder.write("bgp.key", "x".repeat(81), 0o600);
    let problems = all_printed(&load(&path).unwrap_err());
    assert!(problems.contains("1 to 80 bytes") && !problems.contains("xxx"), "{problems}");
}

#[test]
fn peer_that_is_a_machine_is_refused() {
    let own = "[bgp]\nasn = 65101\npeers = [{ address = \"192.0.2.1\", asn = 65000, machines = [\"lb1\"] }]";
    refused(
        own,
        ALL,
        [
            "bgp.peers[0]",
            "peer address 192.0.2.1 belongs to machine \"lb1\" itself",
            "use the address of the router, or list other machines in machines",
        ],
    );
    let vip = "[bgp]\nasn = 65101\npeers = [{ address = \"203.0.113.1\", asn = 65000 }]";
    refused(
        vip,
        ALL,
        [
            "bgp.peers[0]",
            "peer address 203.0.113.1 is an address of VIP \"a\"",
            "use the address of the router",
        ],
    );
    let text = text(PEER, ALL).replace("router_id = \"192.0.2.2\"", "router_id = \"192.0.2.1\"");
    let problems = all_printed(&parsed(&text).unwrap_err());
    assert!(
        problems.contains("machine.lb2.router_id: machines \"lb1\" and \"lb2\" have the BGP identifier 192.0.2.1; help: set router_id on one machine"),
        "{problems}"
    );
}

#[test]
fn unreachable_threshold_is_reported_at_its_key() {
    let both = "announce = { min_serving = 2, return_serving = 99 }";
    refused(
        PEER,
        both,
        [
            "vip.a.announce.return_serving",
            "VIP \"a\" needs 99 serving backends, but pool \"p\" has 2",
            "reduce the number to 2 or less, or add backends to the pool",
        ],
    );
    refused(
        PEER,
        "announce = { min_serving = 3 }",
        [
            "vip.a.announce.min_serving",
            "VIP \"a\" needs 3 serving backends, but pool \"p\" has 2",
            "reduce the number to 2 or less, or add backends to the pool",
        ],
    );
    let as_zero = "[bgp]\nasn = 0\npeers = [{ address = \"192.0.2.0\", asn = 65000 }]";
    let zero = problem(as_zero, "");
    assert!(says(&zero, "\"asn\" must be between 1 and 4294967295, got 0", ""));
}
