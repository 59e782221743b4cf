//! Tests of remote clusters: values, errors and warnings.

use super::{EXAMPLE, all, parsed, printed, says, with_pools};

const POOL: &str = "[pool.p]\nbackends = [{ name = \"b1\", address = \"198.18.0.1\" }]\n[check.c]\ntcp = { port = 80 }\n[check.v]\ntcp = { port = 80 }\nvia = \"vip\"\n";
const GROUP: &str =
    "[prefix_group.g]\nprefixes = [\"198.51.100.0/26\", \"198.51.100.0/24\", \"2001:db8:e::/64\"]\n";
const REMOTE: &str = "[remote.r]\nsources = [\"192.0.2.64/26\"]\nprefixes = { g = [\"198.51.100.64/26\"] }\naddresses = { v = [\"203.0.113.65\"] }\n";
const VIP: &str = "[vip.v]\naddresses = [\"203.0.113.1\"]\nremotes = [\"r\"]\nremote_checks = [\"c\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";
const GROUPED: &str = "[vip.w]\ngroup = \"g\"\nsuffixes = [\"0.0.0.5/6\"]\nremotes = [\"r\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";

fn whole() -> String {
    with_pools(&format!("{POOL}{GROUP}{REMOTE}{VIP}{GROUPED}"))
}

/// Applies one change and compares field, message and help of all problems.
fn expect(from: &str, to: &str, expected: &[(&str, &str, &str)]) {
    let text = whole();
    assert_eq!(text.matches(from).count(), 1, "{from}");
    let problems = all(&text.replace(from, to));
    let problems: Vec<_> = problems.iter().filter(|problem| problem.field.as_str() != "check.v").collect();
    let shown: Vec<String> = problems.iter().map(|problem| printed(problem)).collect();
    assert_eq!(problems.len(), expected.len(), "{to}: {shown:#?}");
    for (problem, (field, message, help)) in problems.iter().zip(expected) {
        assert_eq!(problem.field.as_str(), *field, "{shown:#?}");
        assert!(says(problem, message, help), "{message:?}, {help:?} not in {shown:#?}");
    }
}

#[test]
fn the_examples_remote_arrives() {
    let (config, _) = parsed(EXAMPLE).unwrap();
    let sources: Vec<String> = config.remotes()[0].sources.iter().map(ToString::to_string).collect();
    assert_eq!(
        (&*config.remotes()[0].name, sources.join(" ")),
        ("fra2", "198.51.100.96/28 2001:db8:6::/64".into())
    );
    let www = config.vips().iter().find(|vip| &*vip.name == "www").unwrap();
    let shown: Vec<String> = www
        .remote_pools
        .iter()
        .flat_map(|there| {
            there.pool.members.iter().map(move |member| {
                let checks: Vec<&str> = member.checks.iter().map(|check| &*check.name).collect();
                format!(
                    "{} {} {} {}",
                    &there.pool.name,
                    &member.backend.name,
                    member.backend.address,
                    checks.join(",")
                )
            })
        })
        .collect();
    assert_eq!(
        shown,
        ["remotes@www/ipv4 fra2 203.0.113.74 web-tcp", "remotes@www/ipv6 fra2 2001:db8:f::74 web-tcp",]
    );
    assert!(config.vips().iter().all(|vip| vip.fragments));
}

#[test]
fn a_grouped_vip_has_its_own_last_bits_behind_the_other_prefix() {
    let (config, _) = parsed(&whole()).unwrap();
    let there = &config.vips().iter().find(|vip| &*vip.name == "w").unwrap().remote_pools[0];
    let ours: Vec<String> = there.ours.iter().map(ToString::to_string).collect();
    assert_eq!(ours, ["198.51.100.0/26", "198.51.100.0/24"]);
    assert_eq!(
        (there.pool.name.to_string(), there.theirs[0].to_string()),
        ("remotes@w/g/ipv4".into(), "198.51.100.64/26".into())
    );
    assert_eq!(there.pool.members[0].backend.address.to_string(), "198.51.100.69");
}

#[test]
fn what_would_send_packets_astray_is_refused_by_name() {
    expect("g = [\"198.51.100.64/26\"]", "g = [\"198.51.100.64/26\"]", &[]);
    expect(
        "192.0.2.64/26",
        "192.0.2.0/26",
        &[(
            "remote.r.sources[0]",
            "source 192.0.2.0/26 contains 192.0.2.1, a machine of this cluster",
            "list addresses of the other cluster only; the machine is machine.lb1.addresses[0] on line 5",
        )],
    );
    expect(
        "192.0.2.64/26",
        "203.0.113.0/26",
        &[(
            "remote.r.sources[0]",
            "source 203.0.113.0/26 contains the VIP 203.0.113.1 of this cluster",
            "list addresses of the other cluster's machines only; the VIP is vip.v.addresses[0] on line 21",
        )],
    );
    expect(
        "192.0.2.64/26",
        "192.0.2.65/26",
        &[("remote.r.sources[0]", "prefix 192.0.2.65/26 has host bits set", "write \"192.0.2.64/26\"")],
    );
    expect(
        "sources = [\"192.0.2.64/26\"]\n",
        "",
        &[(
            "remote.r.sources",
            "[remote.r] needs a \"sources\" key",
            "\"sources\" is the outer source addresses of the other cluster's machines, for example sources = [\"198.51.100.96/28\"]",
        )],
    );
    expect(
        "[remote.r]",
        "[remote.c]",
        &[
            ("remote.c", "remote \"c\" is this cluster itself", "use the name of the other cluster"),
            ("vip.v.remotes[0]", "unknown remote \"r\"", "did you mean \"c\"?"),
            ("vip.w.remotes[0]", "unknown remote \"r\"", "did you mean \"c\"?"),
        ],
    );
    expect(
        "[remote.r]\n",
        "[remote.r]\nencapsulation = \"ipip\"\n",
        &[(
            "remote.r.encapsulation",
            "a remote cannot use encapsulation \"ipip\", because its kind is not \"gre\"",
            "only GRE can carry the mark that prevents loops",
        )],
    );
    expect(
        "[remote.r]\n",
        "[remote.r]\nencapsulation = \"gra\"\n",
        &[("remote.r.encapsulation", "unknown encapsulation \"gra\"", "did you mean \"gre\"?")],
    );
    expect(
        "[remote.r]\n",
        "[encapsulation.o]\nkind = \"gre\"\ntoo_big = \"fragment-outer\"\n[remote.r]\nencapsulation = \"o\"\n",
        &[(
            "remote.r.encapsulation",
            "a remote cannot use \"o\" with too_big = \"fragment-outer\"",
            "use fragment-inner or drop; load balancers do not reassemble outer packets",
        )],
    );
    expect(
        "remote_checks = [\"c\"]",
        "remote_checks = [\"v\"]",
        &[
            ("check.c", "check \"c\" is not used by any pool", ""),
            (
                "vip.v.remote_checks[0]",
                "check \"v\" probes through the VIP",
                "use a check with via = \"backend\", which probes the VIP's address in the other cluster",
            ),
        ],
    );
    expect(
        "remotes = [\"r\"]\nremote_checks",
        "remote_checks",
        &[(
            "vip.v.remote_checks",
            "\"remote_checks\" needs remotes in the same VIP",
            "remove \"remote_checks\"",
        )],
    );
    expect(
        "remotes = [\"r\"]\nremote_checks",
        "remotes = [\"r\", \"r\"]\nremote_checks",
        &[("vip.v.remotes[1]", "\"remotes\" lists \"r\" twice", "")],
    );
}

#[test]
fn prefixes_and_addresses_of_a_remote_fit_those_of_this_cluster() {
    let prefix = "g = [\"198.51.100.64/26\"]";
    let to = |text: &str| format!("g = [\"{text}\"]");
    expect(
        prefix,
        &to("198.51.100.0/26"),
        &[(
            "remote.r.prefixes.g[0]",
            "prefix 198.51.100.0/26 overlaps 198.51.100.0/26, the prefix of this cluster",
            "the first prefix of a group belongs to this cluster (prefix_group.g.prefixes[0] on line 15)",
        )],
    );
    expect(
        prefix,
        &to("198.51.100.64/27"),
        &[
            (
                "remote.r.prefixes.g[0]",
                "prefix 198.51.100.64/27 leaves no room for suffix 0.0.0.5/6",
                "the prefix leaves 5 bits for the suffix, which is vip.w.suffixes[0] on line 27",
            ),
            (
                "remote.r.prefixes.g[0]",
                "prefix 198.51.100.64/27 must have 26 bits, like 198.51.100.0/26",
                "clusters of a group have prefixes of the same length (prefix_group.g.prefixes[0] on line 15)",
            ),
        ],
    );
    expect(
        prefix,
        &to("198.18.1.64/26"),
        &[(
            "remote.r.prefixes.g[0]",
            "prefix 198.18.1.64/26 is not in prefix group \"g\"",
            "add the prefix to the group; otherwise, redirected packets of the other cluster match no VIP",
        )],
    );
    expect(
        prefix,
        &to("198.51.100.64/26\", \"198.51.100.128/26"),
        &[(
            "remote.r.prefixes.g[1]",
            "\"prefixes.g[1]\" has the same address family as an earlier entry",
            "list at most one IPv4 and one IPv6 entry",
        )],
    );
    expect(
        "{ g =",
        "{ h =",
        &[
            ("remote.r.prefixes.h", "unknown prefix group \"h\"", "did you mean \"g\"?"),
            (
                "vip.w.remotes[0]",
                "remote \"r\" has no IPv4 entry in prefixes.g",
                "add an entry to [remote.r] for each address family of the VIP",
            ),
        ],
    );
    expect(
        "v = [\"203.0.113.65\"]",
        "v = [\"203.0.113.1\"]",
        &[(
            "remote.r.addresses.v[0]",
            "203.0.113.1 is the address of VIP \"v\" in this cluster",
            "use the address of the VIP in the other cluster",
        )],
    );
    expect(
        "v = [\"203.0.113.65\"]",
        "v = [\"192.0.2.1\"]",
        &[(
            "remote.r.addresses.v[0]",
            "192.0.2.1 is the address of machine \"lb1\" in this cluster",
            "use the address of the VIP in the other cluster",
        )],
    );
    expect(
        "v = [\"203.0.113.65\"]",
        "v = [\"198.18.0.1\"]",
        &[(
            "remote.r.addresses.v[0]",
            "198.18.0.1 is the address of backend \"b1\" in this cluster",
            "use the address of the VIP in the other cluster",
        )],
    );
    expect(
        "v = [\"203.0.113.65\"]",
        "x = [\"203.0.113.65\"]",
        &[
            ("remote.r.addresses.x", "unknown VIP \"x\"", "did you mean \"v\"?"),
            (
                "vip.v.remotes[0]",
                "remote \"r\" has no IPv4 entry in addresses.v",
                "add an entry to [remote.r] for each address family of the VIP",
            ),
        ],
    );
    expect(
        "addresses = [\"203.0.113.1\"]",
        "addresses = [\"203.0.113.1\", \"2001:db8:f::1\"]",
        &[(
            "vip.v.remotes[0]",
            "remote \"r\" has no IPv6 entry in addresses.v",
            "add an entry to [remote.r] for each address family of the VIP",
        )],
    );
    expect(
        "addresses = [\"192.0.2.1\", \"2001:db8::1\"]",
        "addresses = [\"2001:db8::1\"]",
        &[
            (
                "pool.p.backends[0].address",
                "machine \"lb1\" has no IPv4 source address for packets to 198.18.0.1",
                "add an IPv4 address to the machine, or an IPv4 prefix to source_prefixes of encapsulation \"gre\"",
            ),
            (
                "vip.v.remotes[0]",
                "machine \"lb1\" has no IPv4 source address for packets to remote \"r\"",
                "add an IPv4 address to the machine, or a prefix to source_prefixes of encapsulation \"gre\"",
            ),
            (
                "vip.w.remotes[0]",
                "machine \"lb1\" has no IPv4 source address for packets to remote \"r\"",
                "add an IPv4 address to the machine, or a prefix to source_prefixes of encapsulation \"gre\"",
            ),
        ],
    );
}

#[test]
fn vips_of_one_address_say_the_same_of_fragments() {
    let other = "[vip.x]\nfragments = false\naddresses = [\"203.0.113.1\"]\nservices = [{ ports = [81], protocol = \"tcp\", pool = \"p\" }]\n[vip.w]\n";
    expect(
        "[vip.w]\n",
        other,
        &[(
            "vip.x",
            "VIPs \"v\" and \"x\" share 203.0.113.1, but differ in \"fragments\"",
            "set fragments = true as in vip.v on line 20",
        )],
    );
    expect("[vip.w]\n", &other.replace("fragments = false\n", ""), &[]);
    expect(
        "[vip.w]\n",
        "[vip.w]\nfragments = 0\n",
        &[("vip.w.fragments", "\"fragments\" must be true or false, got 0", "")],
    );
}

#[test]
fn vips_of_one_address_agree_on_unserved_port() {
    let other = "[vip.x]\non_unserved_port = \"reject\"\naddresses = [\"203.0.113.1\"]\nservices = [{ ports = [81], protocol = \"tcp\", pool = \"p\" }]\n[vip.w]\n";
    expect(
        "[vip.w]\n",
        other,
        &[(
            "vip.x",
            "VIPs \"v\" and \"x\" share 203.0.113.1, but differ in \"on_unserved_port\"",
            "set on_unserved_port = \"drop\" as in vip.v on line 20",
        )],
    );
    // The action for packets without a backend belongs to the services of a VIP.
    expect("[vip.w]\n", &other.replace("on_unserved_port", "on_no_backend"), &[]);
}
