//! Tests of prefix groups and suffixes: values, errors and warnings.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::{EXAMPLE, all, check, parsed, printed, says, with_pools};

const POOL: &str = "[pool.p]\nbackends = [{ name = \"b1\", address = \"198.18.0.1\" }]\n";

fn vip(name: &str, group: &str, suffixes: &str, ports: &str) -> String {
    format!(
        "[vip.{name}]\ngroup = \"{group}\"\nsuffixes = [{suffixes}]\n\
         services = [{{ ports = {ports}, protocol = \"tcp\", pool = \"p\" }}]\n"
    )
}

/// Compares all problems: line, field, message and help.
fn expect(sections: &str, expected: &[(usize, &str, &str, &str)]) {
    let problems = all(&with_pools(&format!("{POOL}{sections}")));
    let shown: Vec<String> = problems.iter().map(printed).collect();
    assert_eq!(problems.len(), expected.len(), "{sections}\n{shown:#?}");
    for (problem, (line, field, message, help)) in problems.iter().zip(expected) {
        assert_eq!((problem.line(), problem.field.as_str()), (Some(*line), *field), "{shown:#?}");
        assert!(says(problem, message, help), "{message:?}, {help:?} not in {shown:#?}");
    }
}

#[test]
fn the_examples_group_arrives() {
    let (config, _) = parsed(EXAMPLE).unwrap();
    let group = &config.groups()[0];
    let prefixes: Vec<String> = group.prefixes.iter().map(ToString::to_string).collect();
    assert_eq!(
        (&*group.name, prefixes.join(" ")),
        ("edge", "198.51.100.128/25 2001:db8:e::/56 198.51.100.0/25 2001:db8:e:100::/56".into())
    );
    let vip = config.vips().iter().find(|vip| &*vip.name == "edge-cache").unwrap();
    let suffixes: Vec<String> = vip.suffixes.iter().map(ToString::to_string).collect();
    assert_eq!((&*vip.addresses, suffixes.join(" ")), (&[][..], "0.0.0.20/7 ::20/72".into()));
    assert_eq!(vip.shown_addresses().collect::<Vec<_>>(), ["edge 0.0.0.20/7", "edge ::20/72"]);
    let at = ["198.51.100.148", "2001:db8:e::20"].map(|text| text.parse::<IpAddr>().unwrap());
    assert_eq!(vip.reachable_at(), at);
}

#[test]
fn a_vip_has_addresses_or_a_group_with_suffixes_or_both() {
    let group = "[prefix_group.g]\nprefixes = [\"198.51.100.0/24\"]\n[io]";
    check(&[
        (
            "addresses = [\"203.0.113.1\"]\n",
            "",
            &[(
                14,
                "vip.v.addresses",
                "[vip.v] needs an \"addresses\" key",
                "list addresses = [\"203.0.113.10\"], or set group and suffixes",
            )],
        ),
        (
            "addresses = [\"203.0.113.1\"]",
            "group = \"g\"",
            &[
                (
                    14,
                    "vip.v.suffixes",
                    "[vip.v] needs a \"suffixes\" key",
                    "a group needs suffixes such as [\"0.0.0.20/7\"]",
                ),
                (15, "vip.v.group", "unknown prefix group \"g\"", "add a section [prefix_group.g]"),
            ],
        ),
        (
            "addresses = [\"203.0.113.1\"]",
            "suffixes = [\"0.0.0.1/8\"]",
            &[(
                14,
                "vip.v.group",
                "[vip.v] needs a \"group\" key",
                "suffixes need the name of a prefix group",
            )],
        ),
        ("[io]", group, &[(7, "prefix_group.g", "prefix group \"g\" is not used by any VIP", "")]),
    ]);
    let both =
        vip("v", "g", "\"0.0.0.1/8\"", "[80]").replace("group", "addresses = [\"203.0.113.1\"]\ngroup");
    let text = with_pools(&format!("{POOL}[prefix_group.g]\nprefixes = [\"198.51.100.0/24\"]\n{both}"));
    let (config, warnings) = parsed(&text).unwrap();
    assert_eq!(warnings.to_string(), "");
    let shown: Vec<String> = config.vips()[0].shown_addresses().collect();
    assert_eq!(shown, ["203.0.113.1", "g 0.0.0.1/8"]);
}

#[test]
fn prefixes_are_unicast_without_host_bits_and_stand_once() {
    let with = |prefixes: &str, more: &str| {
        format!("[prefix_group.g]\nprefixes = [{prefixes}]\n{more}{}", vip("v", "g", "\"0.0.0.1/4\"", "[80]"))
    };
    expect(
        &with("\"198.51.100.1/24\", \"224.0.0.0/8\", \"127.0.0.0/8\", \"fe00::/8\", 7, \"192.0.2.0/7\"", ""),
        &[
            (
                10,
                "prefix_group.g.prefixes[0]",
                "prefix \"198.51.100.1/24\" has host bits set",
                "write \"198.51.100.0/24\"",
            ),
            (10, "prefix_group.g.prefixes[1]", "prefix \"224.0.0.0/8\" contains multicast addresses", ""),
            (10, "prefix_group.g.prefixes[2]", "prefix \"127.0.0.0/8\" contains loopback addresses", ""),
            (10, "prefix_group.g.prefixes[3]", "prefix \"fe00::/8\" contains link-local addresses", ""),
            (
                10,
                "prefix_group.g.prefixes[4]",
                "\"prefixes[4]\" must be an IP prefix, got 7",
                "for example \"198.51.100.0/24\"",
            ),
            (
                10,
                "prefix_group.g.prefixes[5]",
                "prefix \"192.0.2.0/7\" has an invalid length",
                "use a length from 8 to 32",
            ),
        ],
    );
    expect(
        &with("\"198.51.100.0/24\", \"198.51.100.0/24\"", ""),
        &[(
            10,
            "prefix_group.g.prefixes[1]",
            "prefix 198.51.100.0/24 is used twice",
            "the first use is prefix_group.g.prefixes[0] on line 10",
        )],
    );
    let other = "[prefix_group.h]\nprefixes = [\"198.51.100.0/24\", \"198.51.100.0/25\"]\n";
    expect(
        &with("\"198.51.100.0/24\"", other),
        &[
            (11, "prefix_group.h", "prefix group \"h\" is not used by any VIP", ""),
            (
                12,
                "prefix_group.h.prefixes[0]",
                "prefix 198.51.100.0/24 is used twice",
                "the first use is prefix_group.g.prefixes[0] on line 10",
            ),
        ],
    );
    expect(
        &format!(
            "[prefix_group.g]\nprefixes = []\nname = 1\n[prefix_group.h]\n{}",
            vip("v", "g", "\"::1/4\"", "[80]")
        ),
        &[
            (
                10,
                "prefix_group.g.prefixes",
                "\"prefixes\" must not be empty",
                "for example [\"198.51.100.128/25\"]",
            ),
            (11, "prefix_group.g.name", "unknown key \"name\" in [prefix_group.g]", "known keys: prefixes"),
            (12, "prefix_group.h", "prefix group \"h\" is not used by any VIP", ""),
            (
                12,
                "prefix_group.h.prefixes",
                "[prefix_group.h] needs a \"prefixes\" key",
                "\"prefixes\" is a list of prefixes, for example prefixes = [\"198.51.100.128/25\"]",
            ),
        ],
    );
}

#[test]
fn suffixes_fit_into_every_prefix_of_their_group() {
    let group = "[prefix_group.g]\nprefixes = [\"198.51.100.0/24\", \"203.0.113.128/25\"]\n";
    let suffixes = "\"0.0.0.1/8\", \"::1/64\", \"0.0.0.9/3\", \"0.0.0.1/4\", \"0.0.0.1/4\", \"b1/4\", true, \"0.0.0.0/0\"";
    expect(
        &format!("{group}{}", vip("v", "g", suffixes, "[80]")),
        &[
            (
                13,
                "vip.v.suffixes[0]",
                "suffix 0.0.0.1/8 is too long for prefix 203.0.113.128/25",
                "the prefix leaves 7 bits for the suffix (prefix_group.g.prefixes[1] on line 10)",
            ),
            (
                13,
                "vip.v.suffixes[1]",
                "prefix group \"g\" has no IPv6 prefix for suffix ::1/64",
                "add an IPv6 prefix to the group",
            ),
            (13, "vip.v.suffixes[2]", "suffix \"0.0.0.9/3\" has bits set outside its last 3 bits", ""),
            (13, "vip.v.suffixes[4]", "\"suffixes\" lists \"0.0.0.1/4\" twice", ""),
            (13, "vip.v.suffixes[5]", "suffix \"b1/4\" does not start with an IP address", ""),
            (
                13,
                "vip.v.suffixes[6]",
                "\"suffixes[6]\" must be an IP address, a slash, and the number of low bits to compare, got true",
                "for example \"0.0.0.20/7\"",
            ),
        ],
    );
    expect(
        &format!("{group}{}", vip("v", "gg", "\"0.0.0.1/7\"", "[80]")),
        &[
            (9, "prefix_group.g", "prefix group \"g\" is not used by any VIP", ""),
            (12, "vip.v.group", "unknown prefix group \"gg\"", "did you mean \"g\"?"),
        ],
    );
}

#[test]
fn suffix_and_port_belong_to_one_service() {
    let group = "[prefix_group.g]\nprefixes = [\"198.51.100.0/24\"]\n";
    let (one, other) =
        (vip("v", "g", "\"0.0.0.1/7\"", "[80]"), vip("w", "g", "\"0.0.0.1/7\"", "[\"79-81\"]"));
    expect(
        &format!("{group}{one}{other}"),
        &[(
            18,
            "vip.w.services[0]",
            "g 0.0.0.1/7 tcp port 79-81 already belongs to another service",
            "the other service is vip.v.services[0] on line 14",
        )],
    );
    let longer = vip("w", "g", "\"0.0.0.1/8\"", "[80]");
    let inside = "[prefix_group.h]\nprefixes = [\"198.51.100.64/26\"]\n";
    let same = vip("x", "h", "\"0.0.0.1/6\"", "[80]");
    expect(&format!("{group}{one}{longer}{inside}{same}"), &[]);
}

#[test]
fn a_machines_own_address_that_a_suffix_hits_is_warned_of() {
    let groups =
        "[prefix_group.g]\nprefixes = [\"192.0.2.0/24\"]\n[prefix_group.h]\nprefixes = [\"192.0.2.0/28\"]\n";
    let dead = vip("v", "h", "\"0.0.0.1/4\"", "[80]");
    let shadowed = vip("w", "g", "\"0.0.0.1/8\"", "[80]");
    expect(
        &format!("{groups}{dead}{shadowed}"),
        &[(
            5,
            "machine.lb1.addresses[0]",
            "machine address 192.0.2.1 is also an address of VIP \"v\" through suffix 0.0.0.1/4",
            "packets to this address go to the kernel, not to the VIP",
        )],
    );
    let other = vip("v", "h", "\"0.0.0.2/4\"", "[80]");
    expect(&format!("{groups}{other}{shadowed}"), &[]);
}

#[test]
fn what_the_filter_has_to_widen_is_warned_of_by_name() {
    let prefixes = |count: u32| -> String {
        let one = |n: u32| format!("\"198.18.{}.0/24\"", n * 2);
        (0..count).map(one).collect::<Vec<_>>().join(", ")
    };
    let text = |count| {
        format!(
            "[prefix_group.g]\nprefixes = [{}]\n{}",
            prefixes(count),
            vip("v", "g", "\"0.0.0.1/8\"", "[80]")
        )
    };
    expect(&text(64), &[]);
    expect(
        &text(66),
        &[(
            9,
            "prefix_group",
            "66 prefixes exceed the XDP filter size of 64, so the filter has wider prefixes (198.18.0.0/22, 198.18.4.0/22)",
            "use neighboring prefixes; packets to other addresses in the wider prefixes are dropped with the reason no_vip",
        )],
    );
}

/// This test uses 10,000 prefixes, and 10,000 VIPs with one suffix each.
#[test]
fn ten_thousand_prefixes_and_suffixes_are_read_in_a_moment() {
    let prefix = |n: u32| {
        format!(
            "\"198.{}.{}.{}/28\", \"2001:db8:{:x}::/48\"",
            18 + n / 4096 % 2,
            n / 16 % 256,
            n % 16 * 16,
            (n + 0x100) * 2
        )
    };
    let prefixes: Vec<String> = (0..5_000).map(prefix).collect();
    let mut text = format!("{POOL}[prefix_group.g]\nprefixes = [{}]\n", prefixes.join(", "));
    for n in 0..10_000 {
        text.push_str(&vip(&format!("v{n}"), "g", &format!("\"::{n:x}/{}\"", 40 + n % 40), "[80]"));
    }
    let text = with_pools(&text);
    let start = Instant::now();
    let (config, warnings) = parsed(&text).unwrap();
    let took = start.elapsed();
    println!("{took:?}");
    assert_eq!((config.groups()[0].prefixes.len(), config.vips().len(), warnings.len()), (10_000, 10_000, 1));
    assert!(warnings.to_string().contains("prefixes exceed the XDP filter size of 64"), "{warnings}");
    assert!(
        took < Duration::from_secs(200),
        "{took:?}: expected a few seconds without optimization, ten times that on a busy machine"
    );
}
