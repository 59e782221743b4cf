//! Encapsulations, VIPs and what clashes across sections.

use super::{BASE, all, check, parsed, with_pools};
use crate::Severity;

#[test]
fn encapsulations_are_checked() {
    check(&[
        (
            "kind = \"gue\"",
            "kind = \"vxlan\"",
            &[(10, "encapsulation.t.kind", "\"vxlan\"", "\"gre\", \"ipip\", \"gue\", \"l2\"")],
        ),
        (
            "kind = \"gue\"",
            "kind = \"gre\"\nudp_checksum = true",
            &[(11, "encapsulation.t.udp_checksum", "true", "only gue has UDP")],
        ),
        (
            "kind = \"gue\"",
            "kind = \"gue\"\nudp_checksum = 1",
            &[(11, "encapsulation.t.udp_checksum", "1", "true or false")],
        ),
        (
            "kind = \"gue\"",
            "kind = \"l2\"\ndont_fragment = true\nsource_prefixes = [\"198.51.100.0/28\"]",
            &[
                (11, "encapsulation.t.dont_fragment", "true", "l2 writes no outer header"),
                (12, "encapsulation.t.source_prefixes", "a list of 1", "l2 writes no outer header"),
            ],
        ),
        (
            "kind = \"gue\"",
            "kind = \"gue\"\nsource_prefixes = [\"198.51.100.0/28\", \"192.0.2.0/24\", \"x/8\", \"198.51.100.1/28\"]",
            &[
                (
                    11,
                    "encapsulation.t.source_prefixes[1]",
                    "\"192.0.2.0/24\"",
                    "one prefix a family, and 198.51.100.0/28",
                ),
                (11, "encapsulation.t.source_prefixes[2]", "host name \"x\"", "zero behind its length"),
                (11, "encapsulation.t.source_prefixes[3]", "bits behind its length", ""),
            ],
        ),
        (
            "[encapsulation.t]\nkind = \"gue\"",
            "[encapsulation.gre]\nkind = \"gue\"",
            &[
                (9, "encapsulation.gre", "no pool uses", ""),
                (10, "encapsulation.gre.kind", "\"gue\"", "its name is a kind"),
                (12, "pool.p.encapsulation", "\"t\"", "gre, ipip, gue, l2"),
            ],
        ),
        (
            "encapsulation = \"t\"",
            "encapsulation = \"gree\"",
            &[
                (9, "encapsulation.t", "no pool uses", ""),
                (12, "pool.p.encapsulation", "\"gree\"", "did you mean \"gre\"?"),
            ],
        ),
        (
            "\"198.18.0.1\"",
            "\"2001:db8::1\"",
            &[(
                13,
                "pool.p.backends[0].address",
                "2001:db8::1",
                "IPv6 address (\"lb1\" has none) or encapsulation \"t\" an IPv6",
            )],
        ),
        (
            "[\"192.0.2.1\"]",
            "[\"2001:db8::9\"]",
            &[(13, "pool.p.backends[0].address", "198.18.0.1", "IPv4 address (\"lb1\" has none)")],
        ),
    ]);
    for cure in ["kind = \"l2\"", "kind = \"gue\"\nsource_prefixes = [\"2001:db8:5::/64\"]"] {
        let text = BASE.replace("\"198.18.0.1\"", "\"2001:db8::1\"").replace("kind = \"gue\"", cure);
        assert!(all(&text).is_empty(), "{cure}");
    }
}

#[test]
fn vips_and_ports_are_checked() {
    check(&[
        (
            "\"203.0.113.1\"",
            "\"224.0.0.1\", \"::\", \"127.0.0.1\", \"www.example\", 7",
            &[
                (15, "vip.v.addresses[0]", "the multicast address", "one host"),
                (15, "vip.v.addresses[1]", "the unspecified address", ""),
                (15, "vip.v.addresses[2]", "the loopback address", ""),
                (15, "vip.v.addresses[3]", "the host name \"www.example\"", "host names are not resolved"),
                (15, "vip.v.addresses[4]", "7", "IPv4 or IPv6 address"),
            ],
        ),
        (
            "\"203.0.113.1\"",
            "\"2001:db8::1\", \"2001:DB8:0::1\"",
            &[(15, "vip.v.addresses[1]", "\"2001:DB8:0::1\"", "each address once")],
        ),
        (
            "\"203.0.113.1\"",
            "\"192.0.2.1\"",
            &[(
                15,
                "vip.v.addresses[0]",
                "a machine's own address 192.0.2.1 (machine.lb1.addresses[0] in line 5)",
                "",
            )],
        ),
        (
            "\"203.0.113.1\"",
            "\"198.18.0.1\"",
            &[(15, "vip.v.addresses[0]", "a backend's address 198.18.0.1", "")],
        ),
        (
            "batch = 64",
            "max_vips = 1\n[vip.u]\naddresses = [\"203.0.113.2\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]",
            &[(9, "vip", "2 addresses of VIPs", "io.max_vips = 1")],
        ),
        ("addresses = [\"203.0.113.1\"]\n", "", &[(14, "vip.v.addresses", "nothing", "a list of addresses")]),
        ("[80]", "[0]", &[(16, "vip.v.services[0].ports[0]", "0", "a port from 1 to 65535")]),
        ("[80]", "[65536]", &[(16, "vip.v.services[0].ports[0]", "65536", "a port")]),
        ("[80]", "[\"80\"]", &[(16, "vip.v.services[0].ports[0]", "\"80\"", "a range such as")]),
        ("[80]", "[\"0-9\"]", &[(16, "vip.v.services[0].ports[0]", "\"0-9\"", "a range such as")]),
        ("[80]", "[\"+1-9\"]", &[(16, "vip.v.services[0].ports[0]", "\"+1-9\"", "")]),
        ("[80]", "[\"9-1\"]", &[(16, "vip.v.services[0].ports[0]", "\"9-1\"", "the lower number first")]),
        ("[80]", "[90, \"80-90\"]", &[(16, "vip.v.services[0].ports", "80-90 and 90", "each number once")]),
        (
            "[80]",
            "[\"1-100\", \"2-3\"]",
            &[(16, "vip.v.services[0].ports", "1-100 and 2-3", "each number once")],
        ),
        ("[80]", "80", &[(16, "vip.v.services[0].ports", "80", "a list of ports")]),
        ("[80]", "\"all\"", &[(16, "vip.v.services[0].ports", "\"all\"", "or \"any\"")]),
        ("ports = [80], ", "", &[(16, "vip.v.services[0].ports", "nothing", "or \"any\"")]),
        (
            "\"tcp\"",
            "\"sctp\"",
            &[(16, "vip.v.services[0].ports", "a list of 1", "this protocol has no ports")],
        ),
        (
            "\"tcp\"",
            "\"ah\"",
            &[(16, "vip.v.services[0].protocol", "\"ah\"", "AH included: the protocol behind it")],
        ),
        ("\"tcp\"", "51", &[(16, "vip.v.services[0].protocol", "51", "AH included: the protocol behind it")]),
        ("\"tcp\"", "\"icmp\"", &[(16, "vip.v.services[0].protocol", "\"icmp\"", "answers it")]),
        ("\"tcp\"", "58", &[(16, "vip.v.services[0].protocol", "58", "answers it")]),
        ("\"tcp\"", "44", &[(16, "vip.v.services[0].protocol", "44", "the protocol behind it")]),
        ("\"tcp\"", "256", &[(16, "vip.v.services[0].protocol", "256", "a protocol number")]),
        ("\"tcp\"", "\"tpc\"", &[(16, "vip.v.services[0].protocol", "\"tpc\"", "\"tcp\", \"udp\"")]),
        (
            "pool = \"p\"",
            "pool = \"p\", hash = \"random\"",
            &[(16, "vip.v.services[0].hash", "\"random\"", "\"5-tuple\", \"addresses\", \"source\"")],
        ),
        (
            "[pool.p]",
            "[pool.pp]",
            &[
                (11, "pool.pp", "no VIP uses", ""),
                (16, "vip.v.services[0].pool", "\"p\"", "a section [pool.NAME]"),
            ],
        ),
        (
            "pool = \"p\"",
            "pool = \"q\"",
            &[
                (11, "pool.p", "no VIP uses", ""),
                (16, "vip.v.services[0].pool", "\"q\"", "did you mean \"p\"?"),
            ],
        ),
        (
            "services = [",
            "services = 1 # ",
            &[(11, "pool.p", "no VIP uses", ""), (16, "vip.v.services", "1", "a list of")],
        ),
    ]);
}

#[test]
fn one_port_in_two_services_names_both() {
    let vips = |a: &str, b: &str| {
        let text = BASE.replace("{ ports = [80], protocol = \"tcp\", pool = \"p\" }", a);
        let problems = all(&format!("{text}[vip.w]\naddresses = [\"203.0.113.1\"]\nservices = [{b}]\n"));
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let service = |ports, protocol| format!("{{ ports = {ports}, protocol = {protocol}, pool = \"p\" }}");
    let clashes = [
        ("[80]", "\"tcp\"", "[80]", "6", "port 80,"),
        ("[\"80-89\"]", "\"udp\"", "[\"89-99\"]", "\"udp\"", "port 89-99,"),
        ("[\"1-65535\"]", "\"udp\"", "[9]", "\"udp\"", "port 9,"),
        ("[9]", "\"udp\"", "[\"1-65535\"]", "\"udp\"", "port 1-65535,"),
        ("\"any\"", "\"tcp\"", "\"any\"", "\"tcp\"", "port any,"),
        ("\"any\"", "\"gre\"", "\"any\"", "47", "port any,"),
    ];
    for (ports, protocol, other_ports, other_protocol, part) in clashes {
        let problems = vips(&service(ports, protocol), &service(other_ports, other_protocol));
        assert_eq!(problems.len(), 1, "{problems:#?}");
        assert!(
            problems[0].starts_with("etc/a.toml:19:13: vip.w.services[0]: found 203.0.113.1 "),
            "{problems:?}"
        );
        assert!(
            problems[0].contains(part) && problems[0].contains("vip.v.services[0] in line 16"),
            "{problems:?}"
        );
    }
    let peace = [
        ("[80]", "\"tcp\"", "[80]", "\"udp\""),
        ("[80]", "\"tcp\"", "[81]", "\"tcp\""),
        ("[80]", "\"tcp\"", "\"any\"", "\"tcp\""),
        ("[\"1-79\"]", "\"tcp\"", "[\"80-90\"]", "\"tcp\""),
        ("\"any\"", "4", "\"any\"", "41"),
    ];
    for (ports, protocol, other_ports, other_protocol) in peace {
        let problems = vips(&service(ports, protocol), &service(other_ports, other_protocol));
        assert_eq!(problems, [""; 0]);
    }
}

#[test]
fn a_wide_range_clashes_with_all_that_lie_in_it() {
    let text = BASE.replace(
        "[{ ports = [80], protocol = \"tcp\", pool = \"p\" }]",
        "[\n{ ports = [\"1-100\"], protocol = \"tcp\", pool = \"p\" },\n{ ports = [2], protocol = \"tcp\", pool = \"p\" },\n\
         { ports = [50], protocol = \"tcp\", pool = \"p\" },\n{ ports = [101], protocol = \"tcp\", pool = \"p\" }]",
    );
    let lines: Vec<_> = all(&text).iter().map(|problem| problem.line()).collect();
    assert_eq!(lines, [Some(18), Some(19)]);
}

#[test]
fn machines_do_not_share_addresses() {
    let text = format!("{BASE}[machine.lb2]\naddresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n");
    let problems = all(&text);
    assert_eq!(problems.len(), 1);
    assert_eq!((problems[0].line(), problems[0].field.as_str()), (Some(18), "machine.lb2.addresses[0]"));
    assert!(problems[0].found.contains("machine.lb1.addresses[0] in line 5"));
    for (machine, found) in [("machine = {}\n", "an empty table"), ("machine = 1\n", "1"), ("", "nothing")] {
        let text = format!("{machine}[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n");
        let problems: Vec<_> =
            all(&text).into_iter().filter(|problem| problem.severity == Severity::Error).collect();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!((problems[0].field.as_str(), problems[0].found.as_str()), ("machine", found));
    }
}

#[test]
fn a_coarse_table_is_a_warning_and_one_too_small_an_error() {
    let with = |count: usize| {
        let backend = |n| format!("{{ name = \"b{n}\", address = \"198.18.{}.{}\" }}", n / 256, n % 256);
        let backends: Vec<String> = (1..=count).map(backend).collect();
        let text = BASE.replace("{ name = \"b1\", address = \"198.18.0.1\" }", &backends.join(","));
        all(&text.replace("name = \"c\"", "name = \"c\"\ntable_size = 401"))
    };
    assert!(with(4).is_empty());
    let coarse = with(5);
    assert_eq!(
        (coarse.len(), coarse[0].severity, coarse[0].field.as_str()),
        (1, Severity::Warning, "pool.p")
    );
    assert!(coarse[0].allowed.contains("at most 4 for shares"), "{}", coarse[0]);
    assert_eq!(with(401)[0].severity, Severity::Warning);
    assert_eq!(
        (with(402)[0].severity, with(402)[0].allowed.as_str()),
        (Severity::Error, "at most table_size = 401")
    );
}

#[test]
fn sections_that_nothing_uses_are_warned_of() {
    let text = with_pools(
        "[encapsulation.x]\nkind = \"gre\"\n[pool.a]\nbackends = [{ name = \"b\", address = \"198.18.0.1\", weight = 0 }]\n",
    );
    let (_, warnings) = parsed(&text).unwrap();
    let shown: Vec<_> =
        warnings.iter().map(|w| (w.severity, w.line(), w.field.as_str(), w.found.as_str())).collect();
    assert_eq!(
        shown,
        [
            (Severity::Warning, Some(1), "vip", "no VIP: nothing is served"),
            (Severity::Warning, Some(7), "encapsulation.x", "an encapsulation that no pool uses"),
            (Severity::Warning, Some(9), "pool.a", "a pool that no VIP uses"),
            (Severity::Warning, Some(9), "pool.a", "weight 0 for every backend: all its packets are dropped"),
        ]
    );
    assert!(warnings.to_string().lines().all(|line| line.contains(": warning: ")));
}

#[test]
fn a_vip_twice_is_refused() {
    let vip = "[vip.v]\naddresses = [\"203.0.113.1\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";
    let twice = all(&format!("{BASE}{vip}"));
    assert!(twice[0].found.contains("a second section \"vip.v\""), "{twice:?}");
    let clash = all(&format!("{BASE}{}", vip.replace("vip.v", "vip.w")));
    assert_eq!(clash.len(), 1);
    assert!(
        clash[0].found.contains("203.0.113.1 tcp port 80, which is already in vip.v.services[0] in line 16")
    );
}

#[test]
fn a_bad_name_or_kind_does_not_hide_what_is_wrong_inside() {
    check(&[
        (
            "[vip.v]\naddresses = [\"203.0.113.1\"]",
            "[vip.\"v v\"]\naddresses = [\"::\"]",
            &[
                (14, "vip.\"v v\"", "\"v v\"", "a name of 1 to 64"),
                (15, "vip.\"v v\".addresses[0]", "the unspecified address", ""),
            ],
        ),
        (
            "kind = \"gue\"",
            "kind = \"vxlan\"\nudp_checksum = 1\nsource_prefixes = [\"x\"]\ndont_fragment = 2",
            &[
                (10, "encapsulation.t.kind", "\"vxlan\"", ""),
                (11, "encapsulation.t.udp_checksum", "1", "true or false"),
                (12, "encapsulation.t.source_prefixes[0]", "\"x\" without a length", ""),
                (13, "encapsulation.t.dont_fragment", "2", "true or false"),
            ],
        ),
        (
            "[machine.lb1]\naddresses = [\"192.0.2.1\"]",
            "[machine.\".lb1\"]\naddresses = [\"192.0.2.1\", 4]",
            &[(4, "machine.\".lb1\"", "\".lb1\"", "a name"), (5, "machine.\".lb1\".addresses[1]", "4", "")],
        ),
    ]);
}
