//! Tests of BGP peers and announcements. Combinations that cannot work are errors, and combinations
//! that are probably mistakes are warnings.

use super::*;

/// Returns a configuration with two machines, a pool, and a VIP. The arguments are the VIP's
/// addresses and its `announce` table, and the section `[bgp]`.
fn text(addresses: &str, announce: &str, bgp: &str) -> String {
    with_pools(&format!(
        "[machine.lb2]\naddresses = [\"192.0.2.3\", \"2001:db8::3\"]\ninterfaces = [\"eth0\"]\n\
         [pool.p]\nbackends = [{{ name = \"b1\", address = \"198.18.0.1\" }}]\n\
         [vip.a]\naddresses = [{addresses}]\nservices = [{{ ports = [80], protocol = \"tcp\", pool = \"p\" }}]\n\
         announce = {announce}\n{bgp}\n"
    ))
}

const NEEDS_V4: &str =
    "add \"ipv4\" to the families of a peer; a peer without an IPv4 session also needs next_hop4";
const NEEDS_V6: &str =
    "add \"ipv6\" to the families of a peer; a peer without an IPv6 session also needs next_hop6";
const NEXT_HOP: &str =
    "use it for peers with an IPv6 address and without next_hop4; next_hop6 sets the next hop";
const V4: &str = "\"203.0.113.1\"";
const V6: &str = "\"2001:db8:f::1\"";
const BOTH: &str = "\"203.0.113.1\", \"2001:db8:f::1\"";

/// Returns a section `[bgp]` with one IPv4 peer. `more` has additional keys of the peer.
fn by_v4(more: &str) -> String {
    format!("[bgp]\nasn = 65101\npeers = [{{ address = \"192.0.2.0\", asn = 65000{more} }}]")
}

/// Returns a section `[bgp]` with one IPv6 peer. `more` has additional keys of the peer.
fn by_v6(more: &str) -> String {
    format!("[bgp]\nasn = 65101\npeers = [{{ address = \"2001:db8::9\", asn = 65000{more} }}]")
}

/// Compares all problems: severity, field, message and help.
fn expect(text: &str, wanted: &[(Severity, &str, &str, &str)]) {
    let problems = all(text);
    let shown: Vec<String> = problems.iter().map(printed).collect();
    assert_eq!(problems.len(), wanted.len(), "{text}: {shown:#?}");
    for (problem, (severity, field, message, help)) in problems.iter().zip(wanted) {
        assert_eq!((problem.severity, problem.field.as_str()), (*severity, *field), "{shown:#?}");
        assert!(says(problem, message, help), "{message:?}, {help:?} not in {shown:#?}");
        assert!(problem.line().is_some_and(|line| line > 1), "{shown:#?}");
    }
}

use Severity::{Error, Warning};

#[test]
fn routes_of_a_family_that_no_peer_carries_are_reported() {
    let v4 = "no BGP peer can carry the IPv4 route 203.0.113.1/32 of VIP \"a\"";
    let v6 = "no BGP peer can carry the IPv6 route 2001:db8:f::1/128 of VIP \"a\"";
    let place = "vip.a.announce";
    let never_v4 = (Error, place, v4, NEEDS_V4);
    let never_v6 = (Error, place, v6, NEEDS_V6);
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
        (BOTH, by_v4(""), Some((Warning, place, v6, NEEDS_V6))),
        (BOTH, by_v6(""), Some((Warning, place, v4, NEEDS_V4))),
    ] {
        expect(&text(addresses, "{}", &bgp), wanted.as_slice());
    }
    let both = "[bgp]\nasn = 65101\npeers = [{ address = \"192.0.2.0\", asn = 1, name = \"four\" }, { address = \"2001:db8::9\", asn = 1, name = \"six\" }]";
    expect(&text(BOTH, "{}", both), &[]);
    expect(&text(V6, "{ peers = [\"four\"] }", both), &[never_v6]);
    let apart = both.replace("name = \"six\"", "name = \"six\", machines = [\"lb2\"]");
    let one = (
        Warning,
        place,
        "no BGP peer of machine \"lb1\" can carry the IPv6 route 2001:db8:f::1/128 of VIP \"a\"",
        NEEDS_V6,
    );
    expect(&text(BOTH, "{}", &apart), &[one]);
    // A machine is not checked if the VIP is not announced to any of its peers.
    expect(&text(V6, "{ peers = [\"six\"] }", &apart), &[]);
}

#[test]
fn addresses_of_no_machine_or_of_another_are_reported() {
    let source = "bgp.peers[0].source";
    let nowhere = (
        Warning,
        source,
        "source address 192.0.2.99 belongs to no machine",
        "use an address of the machine that connects, or remove source",
    );
    expect(&text(V4, "{}", &by_v4(", source = \"192.0.2.99\"")), &[nowhere]);
    let other = "source address 192.0.2.1 belongs to machine \"lb1\", but machine \"lb2\" also has this peer";
    let both = (
        Error,
        source,
        other,
        "set machines = [\"lb1\"] and add a peer for each other machine, or remove source",
    );
    expect(&text(V4, "{}", &by_v4(", source = \"192.0.2.1\"")), &[both]);
    expect(&text(V4, "{}", &by_v4(", machines = [\"lb2\"], source = \"192.0.2.1\"")), &[both]);
    expect(&text(V4, "{}", &by_v4(", machines = [\"lb1\"], source = \"192.0.2.1\"")), &[]);
    let listening =
        |at: &str, peer: &str| by_v4(peer).replace("peers =", &format!("listen = [{at}]\npeers ="));
    let nowhere = (
        Warning,
        "bgp.listen[1]",
        "listen address 192.0.2.99:179 belongs to no machine, so each machine would use it",
        "use an address of a section [machine.NAME], or 0.0.0.0",
    );
    expect(&text(V4, "{}", &listening("\"192.0.2.1:179\", \"192.0.2.99:179\"", "")), &[nowhere]);
    let twice = (Error, "bgp.listen[1]", "listen address 192.0.2.1:179 is used twice", "");
    expect(&text(V4, "{}", &listening("\"192.0.2.1:179\", \"192.0.2.1:179\"", "")), &[twice]);
    expect(&text(V4, "{}", &listening("\"0.0.0.0:179\", \"[::]:179\"", ", passive = true")), &[]);
    let deaf = (
        Error,
        "bgp.peers[0].passive",
        "machine \"lb2\" has no IPv4 listen address for this passive peer",
        "add an IPv4 address of the machine to bgp.listen, or remove passive",
    );
    let passive = ", passive = true";
    expect(&text(V4, "{}", &listening("\"192.0.2.1:179\", \"[2001:db8::3]:179\"", passive)), &[deaf]);
    expect(&text(V4, "{}", &listening("\"192.0.2.1:179\", \"192.0.2.3:179\"", passive)), &[]);
}

#[test]
fn next_hops_that_never_act_are_reported() {
    let idle6 = (
        Warning,
        "bgp.peers[0].next_hop6",
        "next_hop6 has no effect, because families does not contain \"ipv6\"",
        "add \"ipv6\" to families, or remove next_hop6",
    );
    expect(&text(V4, "{}", &by_v4(", families = [\"ipv4\"], next_hop6 = \"2001:db8::1\"")), &[idle6]);
    let idle4 = (
        Warning,
        "bgp.peers[0].next_hop4",
        "next_hop4 has no effect, because families does not contain \"ipv4\"",
        "add \"ipv4\" to families, or remove next_hop4",
    );
    expect(&text(V6, "{}", &by_v6(", families = [\"ipv6\"], next_hop4 = \"192.0.2.1\"")), &[idle4]);
    let extended = "bgp.peers[0].extended_next_hop";
    let on = |more: &str| format!(", extended_next_hop = true{more}");
    let own = (
        Warning,
        extended,
        "extended_next_hop has no effect, because in an IPv4 session the local address is the next hop",
        NEXT_HOP,
    );
    expect(&text(V4, "{}", &by_v4(&on(""))), &[own]);
    let given =
        (Warning, extended, "extended_next_hop has no effect, because next_hop4 has precedence", NEXT_HOP);
    expect(&text(V4, "{}", &by_v6(&on(", next_hop4 = \"192.0.2.1\""))), &[given]);
    let none = (
        Warning,
        extended,
        "extended_next_hop has no effect, because families does not contain \"ipv4\"",
        NEXT_HOP,
    );
    expect(&text(V6, "{}", &by_v6(&on(", families = [\"ipv6\"]"))), &[none]);
    // The key `next_hop6` is the next hop of IPv4 routes in this case.
    expect(&text(V4, "{}", &by_v6(&on(", families = [\"ipv4\"], next_hop6 = \"2001:db8::1\""))), &[]);
    expect(&text(V4, "{}", &by_v4(", extended_next_hop = false")), &[]);
}

#[test]
fn local_pref_for_peers_of_other_systems_alone_is_told_of() {
    let idle = (
        Warning,
        "vip.a.announce.local_pref",
        "local_pref has no effect, because no peer of this VIP is in AS 65101",
        "use med or prepend for external peers",
    );
    expect(&text(V4, "{ local_pref = 5 }", &by_v4("")), &[idle]);
    expect(&text(V4, "{ local_pref = 5 }", &by_v4("").replace("65000", "65101")), &[]);
    let mixed = "[bgp]\nasn = 65101\npeers = [{ address = \"192.0.2.0\", asn = 1, name = \"out\" }, { address = \"192.0.2.9\", asn = 65101, name = \"in\" }]";
    expect(&text(V4, "{ local_pref = 5 }", mixed), &[]);
    expect(&text(V4, "{ local_pref = 5, peers = [\"out\"] }", mixed), &[idle]);
}

#[test]
fn what_comes_twice_in_a_list_is_told_of_and_counts_once() {
    let again = |field, found| (Warning, field, found, "");
    let announce = "{ communities = [\"65101:1\", \"65101:1\"], large_communities = [\"1:2:3\", \"1:2:4\", \"1:2:3\"], \
                    peers = [\"192.0.2.0\", \"192.0.2.0\"], backups = [\"lb2\", \"lb1\", \"lb2\"] }";
    let wanted = [
        again("vip.a.announce.communities[1]", "\"communities\" lists \"65101:1\" twice"),
        again("vip.a.announce.large_communities[2]", "\"large_communities\" lists \"1:2:3\" twice"),
        again("vip.a.announce.peers[1]", "\"peers\" lists \"192.0.2.0\" twice"),
        again("vip.a.announce.backups[2]", "\"backups\" lists \"lb2\" twice"),
        again("bgp.peers[0].machines[1]", "\"machines\" lists \"lb1\" twice"),
    ];
    let whole = text(V4, announce, &by_v4(", machines = [\"lb1\", \"lb1\"]"));
    expect(&whole, &wanted);
    let (config, _) = parsed(&whole).unwrap();
    let says = config.vips()[0].announce.as_ref().unwrap();
    assert_eq!((says.attributes.communities.len(), says.peers.len()), (1, 1));
    let backups: Vec<&str> = says.backups.iter().map(|name| &**name).collect();
    assert_eq!(backups, ["lb1", "lb2"], "the order in the file must have no effect");
}

#[test]
fn a_fault_that_is_told_brings_no_second_false_one() {
    let problem =
        (Error, "vip.a.announce", "\"announce\" must be a table, got true", "write { KEY = VALUE, ... }");
    expect(&text(V4, "true", &by_v4("")), &[problem]);
    let known = "known peers: 192.0.2.0";
    let unknown = (Error, "vip.a.announce.peers[0]", "unknown peer \"tor1\"", known);
    expect(&text(V4, "{ peers = [\"tor1\"] }", &by_v4("")), &[unknown]);
    let near = (Error, "vip.a.announce.peers[0]", "unknown peer \"tor\"", "did you mean \"tor1\"?");
    expect(&text(V4, "{ peers = [\"tor\"] }", &by_v4(", name = \"tor1\"")), &[near]);
    // The peer exists, but it has an error.
    let flawed = (Error, "bgp.peers[0].asn", "\"asn\" must be between 1 and 4294967295, got 0", "");
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
        let problems = all_printed(&load(&path).unwrap_err());
        assert!(
            problems.contains("bgp.peers[0].password_file: the secret of \"password_file\" has "),
            "{problems}"
        );
        assert!(
            problems.contains(
                "not a valid key; help: the file must contain one line with a key of 1 to 80 bytes"
            ),
            "{problems}"
        );
        assert!(!problems.contains("s3cret"), "{problems}");
    }
    folder.write("bgp.key", "s3cret\nother\n", 0o600);
    assert!(
        load(&path).unwrap_err().to_string().contains(
            "the secret of \"password_file\" has 2 lines and 12 characters, and is not a valid key"
        )
    );
    for one in ["s3cret", "s3cret\n", "s3cret\r\n", "s3 cret\n"] {
        folder.write("bgp.key", one, 0o600);
        assert!(load(&path).is_ok(), "{one:?}");
    }
}
