//! Peers and what is announced to them against machines and against each other: what can never work, what probably is not meant.

use super::*;

/// Two machines of both families, a pool, a VIP of `addresses`; `bgp` and `announce` stand in their places.
fn text(addresses: &str, announce: &str, bgp: &str) -> String {
    with_pools(&format!(
        "[machine.lb2]\naddresses = [\"192.0.2.3\", \"2001:db8::3\"]\ninterfaces = [\"eth0\"]\n\
         [pool.p]\nbackends = [{{ name = \"b1\", address = \"198.18.0.1\" }}]\n\
         [vip.a]\naddresses = [{addresses}]\nservices = [{{ ports = [80], protocol = \"tcp\", pool = \"p\" }}]\n\
         announce = {announce}\n{bgp}\n"
    ))
}

const V4: &str = "\"203.0.113.1\"";
const V6: &str = "\"2001:db8:f::1\"";
const BOTH: &str = "\"203.0.113.1\", \"2001:db8:f::1\"";

/// One peer by IPv4, and more of it.
fn by_v4(more: &str) -> String {
    format!("[bgp]\nasn = 65101\npeers = [{{ address = \"192.0.2.0\", asn = 65000{more} }}]")
}

/// One peer by IPv6, and more of it.
fn by_v6(more: &str) -> String {
    format!("[bgp]\nasn = 65101\npeers = [{{ address = \"2001:db8::9\", asn = 65000{more} }}]")
}

/// All problems: level, field, and parts of both halves of the message. Each names its line.
fn expect(text: &str, wanted: &[(Severity, &str, &str, &str)]) {
    let problems = all(text);
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), wanted.len(), "{text}: {shown:#?}");
    for (problem, (severity, field, found, allowed)) in problems.iter().zip(wanted) {
        assert_eq!((problem.severity, problem.field.as_str()), (*severity, *field), "{shown:#?}");
        assert!(problem.found.contains(found), "{found:?} not in {shown:#?}");
        assert!(problem.allowed.contains(allowed), "{allowed:?} not in {shown:#?}");
        assert!(problem.line().is_some_and(|line| line > 1), "{shown:#?}");
    }
}

use Severity::{Error, Warning};

#[test]
fn routes_of_a_family_that_no_peer_carries_are_reported() {
    let v4 = "IPv4 routes such as 203.0.113.1/32, and no peer among its receivers";
    let v6 = "IPv6 routes such as 2001:db8:f::1/128, and no peer among its receivers";
    let place = "vip.a.announce";
    let never_v4 =
        (Error, place, v4, "\"ipv4\" in its families and an IPv4 next hop: a session by IPv4, or next_hop4");
    let never_v6 = (Error, place, v6, "or next_hop6");
    for (addresses, bgp, wanted) in [
        (V4, by_v4(""), None),
        (V4, by_v4(", families = [\"ipv6\"], next_hop6 = \"2001:db8::1\""), Some(never_v4)),
        (V4, by_v6(""), Some(never_v4)),
        (V4, by_v6(", next_hop4 = \"192.0.2.1\""), None),
        (V4, by_v6(", extended_next_hop = true"), None),
        (V6, by_v6(""), None),
        (V6, by_v6(", families = [\"ipv4\"], next_hop4 = \"192.0.2.1\""), Some(never_v6)),
        (V6, by_v4(""), Some(never_v6)),
        (V6, by_v4(", next_hop6 = \"2001:db8::1\""), None),
        (BOTH, by_v4(", next_hop6 = \"2001:db8::1\""), None),
        (BOTH, by_v4(""), Some((Warning, place, v6, "or next_hop6"))),
        (BOTH, by_v6(""), Some((Warning, place, v4, "or next_hop4"))),
    ] {
        expect(&text(addresses, "{}", &bgp), wanted.as_slice());
    }
    let both = "[bgp]\nasn = 65101\npeers = [{ address = \"192.0.2.0\", asn = 1, name = \"four\" }, { address = \"2001:db8::9\", asn = 1, name = \"six\" }]";
    expect(&text(BOTH, "{}", both), &[]);
    expect(&text(V6, "{ peers = [\"four\"] }", both), &[never_v6]);
    let apart = both.replace("name = \"six\"", "name = \"six\", machines = [\"lb2\"]");
    let one =
        (Warning, place, "and no peer of machine \"lb1\" among its receivers carries them", "next_hop6");
    expect(&text(BOTH, "{}", &apart), &[one]);
    // A machine whose peers receive nothing of it is not checked.
    expect(&text(V6, "{ peers = [\"six\"] }", &apart), &[]);
}

#[test]
fn addresses_of_no_machine_or_of_another_are_reported() {
    let source = "bgp.peers[0].source";
    let nowhere = (Warning, source, "192.0.2.99, which is the address of no machine", "or no source");
    expect(&text(V4, "{}", &by_v4(", source = \"192.0.2.99\"")), &[nowhere]);
    let other = "192.0.2.1, the address of machine \"lb1\", for machine \"lb2\" too";
    let both = (Error, source, other, "machines = [\"lb1\"]");
    expect(&text(V4, "{}", &by_v4(", source = \"192.0.2.1\"")), &[both]);
    expect(&text(V4, "{}", &by_v4(", machines = [\"lb2\"], source = \"192.0.2.1\"")), &[both]);
    expect(&text(V4, "{}", &by_v4(", machines = [\"lb1\"], source = \"192.0.2.1\"")), &[]);
    let listening =
        |at: &str, peer: &str| by_v4(peer).replace("peers =", &format!("listen = [{at}]\npeers ="));
    let nowhere = (Warning, "bgp.listen[1]", "192.0.2.99:179, an address of no machine", "or 0.0.0.0");
    expect(&text(V4, "{}", &listening("\"192.0.2.1:179\", \"192.0.2.99:179\"", "")), &[nowhere]);
    let twice = (Error, "bgp.listen[1]", "192.0.2.1:179 a second time", "once");
    expect(&text(V4, "{}", &listening("\"192.0.2.1:179\", \"192.0.2.1:179\"", "")), &[twice]);
    expect(&text(V4, "{}", &listening("\"0.0.0.0:179\", \"[::]:179\"", ", passive = true")), &[]);
    let deaf = (
        Error,
        "bgp.peers[0].passive",
        "dials by IPv4, and machine \"lb2\" listens at no such",
        "bgp.listen",
    );
    let passive = ", passive = true";
    expect(&text(V4, "{}", &listening("\"192.0.2.1:179\", \"[2001:db8::3]:179\"", passive)), &[deaf]);
    expect(&text(V4, "{}", &listening("\"192.0.2.1:179\", \"192.0.2.3:179\"", passive)), &[]);
}

#[test]
fn next_hops_that_never_act_are_reported() {
    let idle6 = (Warning, "bgp.peers[0].next_hop6", "families without ipv6", "no next_hop6");
    expect(&text(V4, "{}", &by_v4(", families = [\"ipv4\"], next_hop6 = \"2001:db8::1\"")), &[idle6]);
    let idle4 = (Warning, "bgp.peers[0].next_hop4", "families without ipv4", "no next_hop4");
    expect(&text(V6, "{}", &by_v6(", families = [\"ipv6\"], next_hop4 = \"192.0.2.1\"")), &[idle4]);
    let extended = "bgp.peers[0].extended_next_hop";
    let on = |more: &str| format!(", extended_next_hop = true{more}");
    let own = (Warning, extended, "a session by IPv4", "next_hop6");
    expect(&text(V4, "{}", &by_v4(&on(""))), &[own]);
    let given = (Warning, extended, "next_hop4 = \"192.0.2.1\", which goes first", "without next_hop4");
    expect(&text(V4, "{}", &by_v6(&on(", next_hop4 = \"192.0.2.1\""))), &[given]);
    let none = (Warning, extended, "families without ipv4", "or false");
    expect(&text(V6, "{}", &by_v6(&on(", families = [\"ipv6\"]"))), &[none]);
    // Then it is the next hop of IPv4 routes.
    expect(&text(V4, "{}", &by_v6(&on(", families = [\"ipv4\"], next_hop6 = \"2001:db8::1\""))), &[]);
    expect(&text(V4, "{}", &by_v4(", extended_next_hop = false")), &[]);
}

#[test]
fn local_pref_for_peers_of_other_systems_alone_is_told_of() {
    let idle = (Warning, "vip.a.announce.local_pref", "of our AS 65101", "med or prepend");
    expect(&text(V4, "{ local_pref = 5 }", &by_v4("")), &[idle]);
    expect(&text(V4, "{ local_pref = 5 }", &by_v4("").replace("65000", "65101")), &[]);
    let mixed = "[bgp]\nasn = 65101\npeers = [{ address = \"192.0.2.0\", asn = 1, name = \"out\" }, { address = \"192.0.2.9\", asn = 65101, name = \"in\" }]";
    expect(&text(V4, "{ local_pref = 5 }", mixed), &[]);
    expect(&text(V4, "{ local_pref = 5, peers = [\"out\"] }", mixed), &[idle]);
}

#[test]
fn what_comes_twice_in_a_list_is_told_of_and_counts_once() {
    let again = |field, found| (Warning, field, found, "each once");
    let announce = "{ communities = [\"65101:1\", \"65101:1\"], large_communities = [\"1:2:3\", \"1:2:4\", \"1:2:3\"], \
                    peers = [\"192.0.2.0\", \"192.0.2.0\"], anchors = [\"lb2\", \"lb1\", \"lb2\"] }";
    let wanted = [
        again("vip.a.announce.communities[1]", "\"65101:1\" a second time"),
        again("vip.a.announce.large_communities[2]", "\"1:2:3\" a second time"),
        again("vip.a.announce.peers[1]", "\"192.0.2.0\" a second time"),
        again("vip.a.announce.anchors[2]", "\"lb2\" a second time"),
        again("bgp.peers[0].machines[1]", "\"lb1\" a second time"),
    ];
    let whole = text(V4, announce, &by_v4(", machines = [\"lb1\", \"lb1\"]"));
    expect(&whole, &wanted);
    let (config, _) = parsed(&whole).unwrap();
    let says = config.vips()[0].announce.as_ref().unwrap();
    assert_eq!((says.attributes.communities.len(), says.peers.len()), (1, 1));
    let anchors: Vec<&str> = says.anchors.iter().map(|name| &**name).collect();
    assert_eq!(anchors, ["lb1", "lb2"], "their order says nothing");
}

#[test]
fn a_fault_that_is_told_brings_no_second_false_one() {
    let problem = (Error, "vip.a.announce", "true", "a table");
    expect(&text(V4, "true", &by_v4("")), &[problem]);
    let known = "the name of a peer of [bgp], or its address without one: 192.0.2.0";
    let unknown = (Error, "vip.a.announce.peers[0]", "\"tor1\"", known);
    expect(&text(V4, "{ peers = [\"tor1\"] }", &by_v4("")), &[unknown]);
    let near =
        (Error, "vip.a.announce.peers[0]", "\"tor\"", "address without one: tor1 (did you mean \"tor1\"?)");
    expect(&text(V4, "{ peers = [\"tor\"] }", &by_v4(", name = \"tor1\"")), &[near]);
    // The peer is there, with a fault of its own.
    let flawed = (Error, "bgp.peers[0].asn", "0", "AS number");
    let named = by_v4(", name = \"tor1\"").replace("65000", "0");
    expect(&text(V4, "{ peers = [\"tor1\"] }", &named), &[flawed]);
}

#[test]
fn a_key_of_two_lines_is_no_key() {
    let folder = files::Folder::new();
    let whole = text(V4, "{}", &by_v4(", password_file = \"bgp.key\""));
    let path = folder.write("a.toml", whole, 0o644);
    folder.write("k", KEY, 0o600);
    for two in ["s3cret\nother\n", "s3cret\r\nother", "s3cret\rother"] {
        folder.write("bgp.key", two, 0o600);
        let problems = load(&path).unwrap_err().to_string();
        assert!(problems.contains("bgp.peers[0].password_file: found "), "{problems}");
        assert!(
            problems.contains("which is no key, allowed a file with a key of 1 to 80 bytes in one line"),
            "{problems}"
        );
        assert!(!problems.contains("s3cret"), "{problems}");
    }
    folder.write("bgp.key", "s3cret\nother\n", 0o600);
    assert!(load(&path).unwrap_err().to_string().contains("2 lines, 12 characters, which is no key"));
    for one in ["s3cret", "s3cret\n", "s3cret\r\n", "s3 cret\n"] {
        folder.write("bgp.key", one, 0o600);
        assert!(load(&path).is_ok(), "{one:?}");
    }
}
