//! Other clusters: what is read, what is refused, what is warned of.

use super::{EXAMPLE, all, parsed, with_pools};

const POOL: &str = "[pool.p]\nbackends = [{ name = \"b1\", address = \"198.18.0.1\" }]\n[check.c]\ntcp = { port = 80 }\n[check.v]\ntcp = { port = 80 }\nvia = \"vip\"\n";
const GROUP: &str =
    "[prefix_group.g]\nprefixes = [\"198.51.100.0/26\", \"198.51.100.0/24\", \"2001:db8:e::/64\"]\n";
const REMOTE: &str = "[remote.r]\nsources = [\"192.0.2.64/26\"]\nprefixes = { g = [\"198.51.100.64/26\"] }\naddresses = { v = [\"203.0.113.65\"] }\n";
const VIP: &str = "[vip.v]\naddresses = [\"203.0.113.1\"]\nremotes = [\"r\"]\nremote_checks = [\"c\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";
const GROUPED: &str = "[vip.w]\ngroup = \"g\"\nsuffixes = [\"0.0.0.5/6\"]\nremotes = [\"r\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";

fn whole() -> String {
    with_pools(&format!("{POOL}{GROUP}{REMOTE}{VIP}{GROUPED}"))
}

/// Field and parts of the message of each problem after one change.
fn expect(from: &str, to: &str, expected: &[(&str, &str, &str)]) {
    let text = whole();
    assert_eq!(text.matches(from).count(), 1, "{from}");
    let problems = all(&text.replace(from, to));
    let problems: Vec<_> = problems.iter().filter(|problem| problem.field.as_str() != "check.v").collect();
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), expected.len(), "{to}: {shown:#?}");
    for (problem, (field, found, allowed)) in problems.iter().zip(expected) {
        assert_eq!(problem.field.as_str(), *field, "{shown:#?}");
        assert!(problem.found.contains(found), "{found:?} not in {shown:#?}");
        assert!(problem.allowed.contains(allowed), "{allowed:?} not in {shown:#?}");
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
        &[("remote.r.sources[0]", "which holds 192.0.2.1", "other cluster's machines")],
    );
    expect(
        "192.0.2.64/26",
        "203.0.113.0/26",
        &[(
            "remote.r.sources[0]",
            "which holds the VIP 203.0.113.1 (vip.v.addresses[0] in line",
            "machines alone",
        )],
    );
    expect("192.0.2.64/26", "192.0.2.65/26", &[("remote.r.sources[0]", "bits behind", "192.0.2.64/26")]);
    expect("sources = [\"192.0.2.64/26\"]\n", "", &[("remote.r.sources", "nothing", "outer sources")]);
    expect(
        "[remote.r]",
        "[remote.c]",
        &[
            ("remote.c", "this cluster", "another cluster"),
            ("vip.v.remotes[0]", "\"r\"", "[remote.NAME]"),
            ("vip.w.remotes[0]", "\"r\"", "[remote.NAME]"),
        ],
    );
    expect(
        "[remote.r]\n",
        "[remote.r]\nencapsulation = \"ipip\"\n",
        &[("remote.r.encapsulation", "\"ipip\"", "only GRE has a mark")],
    );
    expect(
        "[remote.r]\n",
        "[remote.r]\nencapsulation = \"gra\"\n",
        &[("remote.r.encapsulation", "\"gra\"", "did you mean \"gre\"")],
    );
    expect(
        "[remote.r]\n",
        "[encapsulation.o]\nkind = \"gre\"\ntoo_big = \"fragment-outer\"\n[remote.r]\nencapsulation = \"o\"\n",
        &[("remote.r.encapsulation", "fragment-outer", "do not put outer packets together")],
    );
    expect(
        "remote_checks = [\"c\"]",
        "remote_checks = [\"v\"]",
        &[("check.c", "no pool uses", ""), ("vip.v.remote_checks[0]", "via a VIP", "via = \"backend\"")],
    );
    expect(
        "remotes = [\"r\"]\nremote_checks",
        "remote_checks",
        &[("vip.v.remote_checks", "a list of 1", "names no remotes")],
    );
    expect(
        "remotes = [\"r\"]\nremote_checks",
        "remotes = [\"r\", \"r\"]\nremote_checks",
        &[("vip.v.remotes[1]", "\"r\"", "once")],
    );
}

#[test]
fn prefixes_and_addresses_of_a_remote_fit_those_of_this_cluster() {
    let prefix = "g = [\"198.51.100.64/26\"]";
    let to = |text: &str| format!("g = [\"{text}\"]");
    expect(
        prefix,
        &to("198.51.100.0/26"),
        &[("remote.r.prefixes.g[0]", "shares addresses with 198.51.100.0/26", "first prefix")],
    );
    expect(
        prefix,
        &to("198.51.100.64/27"),
        &[
            ("remote.r.prefixes.g[0]", "own is 198.51.100.0/26", "26 bits"),
            ("remote.r.prefixes.g[0]", "leaves 5 bits for 0.0.0.5/6", "room"),
        ],
    );
    expect(
        prefix,
        &to("198.18.1.64/26"),
        &[("remote.r.prefixes.g[0]", "no prefix of group \"g\" covers", "no VIP")],
    );
    expect(
        prefix,
        &to("198.51.100.64/26\", \"198.51.100.128/26"),
        &[("remote.r.prefixes.g[1]", "198.51.100.128/26", "one of each family")],
    );
    expect(
        "{ g =",
        "{ h =",
        &[
            ("remote.r.prefixes.h", "\"h\"", "[prefix_group.NAME]"),
            ("vip.w.remotes[0]", "no IPv4 in prefixes.g", "[remote.r]"),
        ],
    );
    expect(
        "v = [\"203.0.113.65\"]",
        "v = [\"203.0.113.1\"]",
        &[("remote.r.addresses.v[0]", "VIP \"v\" of this cluster", "other cluster")],
    );
    expect(
        "v = [\"203.0.113.65\"]",
        "v = [\"192.0.2.1\"]",
        &[("remote.r.addresses.v[0]", "machine \"lb1\"", "other cluster")],
    );
    expect(
        "v = [\"203.0.113.65\"]",
        "v = [\"198.18.0.1\"]",
        &[(
            "remote.r.addresses.v[0]",
            "198.18.0.1, which is backend \"b1\" of this cluster",
            "other cluster",
        )],
    );
    expect(
        "v = [\"203.0.113.65\"]",
        "x = [\"203.0.113.65\"]",
        &[
            ("remote.r.addresses.x", "\"x\"", "[vip.NAME]"),
            ("vip.v.remotes[0]", "no IPv4 in addresses.v", "[remote.r]"),
        ],
    );
    expect(
        "addresses = [\"203.0.113.1\"]",
        "addresses = [\"203.0.113.1\", \"2001:db8:f::1\"]",
        &[("vip.v.remotes[0]", "no IPv6 in addresses.v", "each family")],
    );
    expect(
        "addresses = [\"192.0.2.1\", \"2001:db8::1\"]",
        "addresses = [\"2001:db8::1\"]",
        &[
            ("pool.p.backends[0].address", "198.18.0.1", "IPv4"),
            ("vip.v.remotes[0]", "machine \"lb1\" has no address", "source prefix"),
            ("vip.w.remotes[0]", "machine \"lb1\" has no address", "source prefix"),
        ],
    );
}

#[test]
fn vips_of_one_address_say_the_same_of_fragments() {
    let other = "[vip.x]\nfragments = false\naddresses = [\"203.0.113.1\"]\nservices = [{ ports = [81], protocol = \"tcp\", pool = \"p\" }]\n[vip.w]\n";
    expect(
        "[vip.w]\n",
        other,
        &[("vip.x", "fragments = false for 203.0.113.1, which is also vip.v", "true")],
    );
    expect("[vip.w]\n", &other.replace("fragments = false\n", ""), &[]);
    expect("[vip.w]\n", "[vip.w]\nfragments = 0\n", &[("vip.w.fragments", "0", "true or false")]);
}
