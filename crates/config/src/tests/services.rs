//! Tests of encapsulations, VIPs, and conflicts between sections.

use super::{BASE, all, check, parsed, printed, with_pools};
use crate::Severity;

#[test]
fn encapsulations_are_checked() {
    check(&[
        (
            "kind = \"gue\"",
            "kind = \"vxlan\"",
            &[(
                10,
                "encapsulation.t.kind",
                "\"kind\" must be \"gre\", \"ipip\", \"gue\" or \"l2\", got \"vxlan\"",
                "",
            )],
        ),
        (
            "kind = \"gue\"",
            "kind = \"gre\"\nudp_checksum = true",
            &[(
                11,
                "encapsulation.t.udp_checksum",
                "\"udp_checksum\" needs kind = \"gue\"",
                "remove \"udp_checksum\"",
            )],
        ),
        (
            "kind = \"gue\"",
            "kind = \"gue\"\nudp_checksum = 1",
            &[(11, "encapsulation.t.udp_checksum", "\"udp_checksum\" must be true or false, got 1", "")],
        ),
        (
            "kind = \"gue\"",
            "kind = \"l2\"\ndont_fragment = true\nsource_prefixes = [\"198.51.100.0/28\"]",
            &[
                (
                    11,
                    "encapsulation.t.dont_fragment",
                    "\"dont_fragment\" cannot be combined with kind = \"l2\"",
                    "kind = \"l2\" adds no outer header",
                ),
                (
                    12,
                    "encapsulation.t.source_prefixes",
                    "\"source_prefixes\" cannot be combined with kind = \"l2\"",
                    "kind = \"l2\" adds no outer header",
                ),
            ],
        ),
        (
            "kind = \"gue\"",
            "kind = \"gue\"\nsource_prefixes = [\"198.51.100.0/28\", \"192.0.2.0/24\", \"x/8\", \"198.51.100.1/28\"]",
            &[
                (
                    11,
                    "encapsulation.t.source_prefixes[1]",
                    "\"source_prefixes[1]\" has the same address family as an earlier prefix",
                    "the first prefix is 198.51.100.0/28",
                ),
                (
                    11,
                    "encapsulation.t.source_prefixes[2]",
                    "prefix \"x/8\" does not start with an IP address",
                    "host names are not resolved; see docs/reference/limits.md",
                ),
                (
                    11,
                    "encapsulation.t.source_prefixes[3]",
                    "prefix \"198.51.100.1/28\" has host bits set",
                    "write \"198.51.100.0/28\"",
                ),
            ],
        ),
        (
            "[encapsulation.t]\nkind = \"gue\"",
            "[encapsulation.gre]\nkind = \"gue\"",
            &[
                (9, "encapsulation.gre", "encapsulation \"gre\" is not used by any pool", ""),
                (
                    10,
                    "encapsulation.gre.kind",
                    "encapsulation \"gre\" must have kind = \"gre\", got \"gue\"",
                    "use another name for an encapsulation of this kind",
                ),
                (
                    12,
                    "pool.p.encapsulation",
                    "unknown encapsulation \"t\"",
                    "known encapsulations: gre, gue, ipip and 1 more",
                ),
            ],
        ),
        (
            "encapsulation = \"t\"",
            "encapsulation = \"gree\"",
            &[
                (9, "encapsulation.t", "encapsulation \"t\" is not used by any pool", ""),
                (12, "pool.p.encapsulation", "unknown encapsulation \"gree\"", "did you mean \"gre\"?"),
            ],
        ),
        (
            "\"198.18.0.1\"",
            "\"2001:db8::1\"",
            &[(
                13,
                "pool.p.backends[0].address",
                "machine \"lb1\" has no IPv6 source address for packets to 2001:db8::1",
                "add an IPv6 address to the machine, or an IPv6 prefix to source_prefixes of encapsulation \"t\"",
            )],
        ),
        (
            "[\"192.0.2.1\"]",
            "[\"2001:db8::9\"]",
            &[(
                13,
                "pool.p.backends[0].address",
                "machine \"lb1\" has no IPv4 source address for packets to 198.18.0.1",
                "add an IPv4 address to the machine, or an IPv4 prefix to source_prefixes of encapsulation \"t\"",
            )],
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
                (
                    15,
                    "vip.v.addresses[0]",
                    "VIP address 224.0.0.1 is a multicast address",
                    "use the address of one host",
                ),
                (
                    15,
                    "vip.v.addresses[1]",
                    "VIP address :: is the unspecified address",
                    "use an address that other machines can reach",
                ),
                (
                    15,
                    "vip.v.addresses[2]",
                    "VIP address 127.0.0.1 is a loopback address",
                    "use an address that other machines can reach",
                ),
                (
                    15,
                    "vip.v.addresses[3]",
                    "VIP address \"www.example\" is not an IP address",
                    "host names are not resolved; see docs/reference/limits.md",
                ),
                (
                    15,
                    "vip.v.addresses[4]",
                    "\"addresses[4]\" must be the IP address of one host, got 7",
                    "for example \"198.18.1.1\"",
                ),
            ],
        ),
        (
            "\"203.0.113.1\"",
            "\"2001:db8::1\", \"2001:DB8:0::1\"",
            &[(15, "vip.v.addresses[1]", "\"addresses\" lists \"2001:DB8:0::1\" twice", "")],
        ),
        (
            "\"203.0.113.1\"",
            "\"192.0.2.1\"",
            &[(
                15,
                "vip.v.addresses[0]",
                "VIP address 192.0.2.1 is also the address of a machine",
                "the other address is machine.lb1.addresses[0] on line 5",
            )],
        ),
        (
            "\"203.0.113.1\"",
            "\"198.18.0.1\"",
            &[(
                15,
                "vip.v.addresses[0]",
                "VIP address 198.18.0.1 is also the address of a backend",
                "the other address is pool.p.backends[0].address on line 13",
            )],
        ),
        (
            "batch = 64",
            "max_vips = 1\n[vip.u]\naddresses = [\"203.0.113.2\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]",
            &[(9, "vip", "2 VIP addresses exceed io.max_vips = 1", "raise io.max_vips")],
        ),
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
            "[80]",
            "[0]",
            &[(16, "vip.v.services[0].ports[0]", "\"ports[0]\" must be between 1 and 65535, got 0", "")],
        ),
        (
            "[80]",
            "[65536]",
            &[(16, "vip.v.services[0].ports[0]", "\"ports[0]\" must be between 1 and 65535, got 65536", "")],
        ),
        (
            "[80]",
            "[\"80\"]",
            &[(
                16,
                "vip.v.services[0].ports[0]",
                "\"ports[0]\" must be a number without quotes, got \"80\"",
                "write 80",
            )],
        ),
        (
            "[80]",
            "[\"0-9\"]",
            &[(
                16,
                "vip.v.services[0].ports[0]",
                "\"ports[0]\" must be between 1 and 65535, got \"0-9\"",
                "",
            )],
        ),
        (
            "[80]",
            "[\"+1-9\"]",
            &[(
                16,
                "vip.v.services[0].ports[0]",
                "\"ports[0]\" must be a port from 1 to 65535, or a range of ports, got \"+1-9\"",
                "for example \"8000-8099\"",
            )],
        ),
        (
            "[80]",
            "[\"9-1\"]",
            &[(16, "vip.v.services[0].ports[0]", "the range \"9-1\" is in the wrong order", "write \"1-9\"")],
        ),
        (
            "[80]",
            "[90, \"80-90\"]",
            &[(16, "vip.v.services[0].ports", "80-90 and 90 in \"ports\" overlap", "list each number once")],
        ),
        (
            "[80]",
            "[\"1-100\", \"2-3\"]",
            &[(16, "vip.v.services[0].ports", "1-100 and 2-3 in \"ports\" overlap", "list each number once")],
        ),
        (
            "[80]",
            "80",
            &[(
                16,
                "vip.v.services[0].ports",
                "\"ports\" must be a list of ports and ranges, or \"any\", got 80",
                "for example [80, \"8000-8099\"]",
            )],
        ),
        (
            "[80]",
            "\"all\"",
            &[(
                16,
                "vip.v.services[0].ports",
                "\"ports\" must be a list of ports and ranges, or \"any\", got \"all\"",
                "for example [80, \"8000-8099\"]",
            )],
        ),
        (
            "ports = [80], ",
            "",
            &[(
                16,
                "vip.v.services[0].ports",
                "vip.v.services[0] needs a \"ports\" key",
                "\"ports\" is a list of ports and ranges, or \"any\", for example ports = [80, \"8000-8099\"]",
            )],
        ),
        (
            "\"tcp\"",
            "\"gre\"",
            &[(
                16,
                "vip.v.services[0].ports",
                "protocol 47 has no ports, so \"ports\" must be \"any\", got a list",
                "remove ports",
            )],
        ),
        (
            "\"tcp\"",
            "\"ah\"",
            &[(
                16,
                "vip.v.services[0].protocol",
                "protocol \"ah\" is an extension header",
                "use the protocol that follows the header",
            )],
        ),
        (
            "\"tcp\"",
            "51",
            &[(
                16,
                "vip.v.services[0].protocol",
                "protocol 51 is an extension header",
                "use the protocol that follows the header",
            )],
        ),
        (
            "\"tcp\"",
            "\"icmp\"",
            &[(
                16,
                "vip.v.services[0].protocol",
                "\"protocol\" cannot be ICMP, got \"icmp\"",
                "the load balancer replies to ICMP for every VIP",
            )],
        ),
        (
            "\"tcp\"",
            "58",
            &[(
                16,
                "vip.v.services[0].protocol",
                "\"protocol\" cannot be ICMP, got 58",
                "the load balancer replies to ICMP for every VIP",
            )],
        ),
        (
            "\"tcp\"",
            "44",
            &[(
                16,
                "vip.v.services[0].protocol",
                "protocol 44 is an extension header",
                "use the protocol that follows the header",
            )],
        ),
        (
            "\"tcp\"",
            "256",
            &[(
                16,
                "vip.v.services[0].protocol",
                "\"protocol\" must be the name of a protocol, or a protocol number from 1 to 255, got 256",
                "for example \"tcp\"",
            )],
        ),
        (
            "\"tcp\"",
            "\"tpc\"",
            &[(16, "vip.v.services[0].protocol", "unknown protocol \"tpc\"", "did you mean \"tcp\"?")],
        ),
        (
            "pool = \"p\"",
            "pool = \"p\", hash = \"random\"",
            &[(
                16,
                "vip.v.services[0].hash",
                "\"hash\" must be \"5-tuple\", \"addresses\" or \"source\", got \"random\"",
                "",
            )],
        ),
        (
            "[pool.p]",
            "[pool.pp]",
            &[
                (11, "pool.pp", "pool \"pp\" is not used by any VIP", ""),
                (16, "vip.v.services[0].pool", "unknown pool \"p\"", "did you mean \"pp\"?"),
            ],
        ),
        (
            "pool = \"p\"",
            "pool = \"q\"",
            &[
                (11, "pool.p", "pool \"p\" is not used by any VIP", ""),
                (16, "vip.v.services[0].pool", "unknown pool \"q\"", "did you mean \"p\"?"),
            ],
        ),
        (
            "services = [",
            "services = 1 # ",
            &[
                (11, "pool.p", "pool \"p\" is not used by any VIP", ""),
                (
                    16,
                    "vip.v.services",
                    "\"services\" must be a list of services, got 1",
                    "for example [{ ports = [80], protocol = \"tcp\", pool = \"NAME\" }]",
                ),
            ],
        ),
    ]);
}

#[test]
fn one_port_in_two_services_names_both() {
    let vips = |a: &str, b: &str| {
        let text = BASE.replace("{ ports = [80], protocol = \"tcp\", pool = \"p\" }", a);
        let problems = all(&format!("{text}[vip.w]\naddresses = [\"203.0.113.1\"]\nservices = [{b}]\n"));
        problems.iter().map(printed).collect::<Vec<_>>()
    };
    let service = |ports, protocol| format!("{{ ports = {ports}, protocol = {protocol}, pool = \"p\" }}");
    let clashes = [
        ("[80]", "\"tcp\"", "[80]", "6", "port 80 already"),
        ("[\"80-89\"]", "\"udp\"", "[\"89-99\"]", "\"udp\"", "port 89-99 already"),
        ("[\"1-65535\"]", "\"udp\"", "[9]", "\"udp\"", "port 9 already"),
        ("[9]", "\"udp\"", "[\"1-65535\"]", "\"udp\"", "port 1-65535 already"),
        ("\"any\"", "\"tcp\"", "\"any\"", "\"tcp\"", "all ports, already"),
        ("\"any\"", "\"gre\"", "\"any\"", "47", "all ports, already"),
    ];
    for (ports, protocol, other_ports, other_protocol, part) in clashes {
        let problems = vips(&service(ports, protocol), &service(other_ports, other_protocol));
        assert_eq!(problems.len(), 1, "{problems:#?}");
        assert!(problems[0].starts_with("etc/a.toml:19:13: vip.w.services[0]: 203.0.113.1 "), "{problems:?}");
        assert!(
            problems[0].contains(part) && problems[0].contains("vip.v.services[0] on line 16"),
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
    assert!(printed(&problems[0]).contains("machine.lb1.addresses[0] on line 5"));
    for (machine, message) in [
        ("machine = {}\n", "\"machine\" is empty"),
        ("machine = 1\n", "\"machine\" must be a table, got 1"),
        ("", "missing section [machine.NAME]"),
    ] {
        let text = format!("{machine}[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n");
        let problems: Vec<_> =
            all(&text).into_iter().filter(|problem| problem.severity == Severity::Error).collect();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!((problems[0].field.as_str(), problems[0].message.as_str()), ("machine", message));
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
    assert!(printed(&coarse[0]).contains("warning: pool.p: pool \"p\" has 5 backends, too many for traffic shares accurate to 1 %; help: raise cluster.table_size; 401 entries are enough for 4 backends"), "{}", coarse[0]);
    assert_eq!(with(401)[0].severity, Severity::Warning);
    assert_eq!(
        (with(402)[0].severity, with(402)[0].message.as_str()),
        (Severity::Error, "pool \"p\" has 402 backends, but table_size is 401")
    );
}

#[test]
fn sections_that_nothing_uses_are_warned_of() {
    let text = with_pools(
        "[encapsulation.x]\nkind = \"gre\"\n[pool.a]\nbackends = [{ name = \"b\", address = \"198.18.0.1\", weight = 0 }]\n",
    );
    let (_, warnings) = parsed(&text).unwrap();
    let shown: Vec<_> =
        warnings.iter().map(|w| (w.severity, w.line(), w.field.as_str(), w.message.as_str())).collect();
    assert_eq!(
        shown,
        [
            (Severity::Warning, Some(1), "vip", "no VIP is configured, so no packets are forwarded"),
            (Severity::Warning, Some(7), "encapsulation.x", "encapsulation \"x\" is not used by any pool"),
            (
                Severity::Warning,
                Some(9),
                "pool.a",
                "all backends of pool \"a\" have weight 0, so none of them gets packets"
            ),
            (Severity::Warning, Some(9), "pool.a", "pool \"a\" is not used by any VIP"),
        ]
    );
    assert!(warnings.to_string().split("\n\n").all(|one| one.starts_with("warning: ")));
}

#[test]
fn a_vip_twice_is_refused() {
    let vip = "[vip.v]\naddresses = [\"203.0.113.1\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";
    let twice = all(&format!("{BASE}{vip}"));
    assert!(twice[0].message == "section [vip.v] is defined twice", "{twice:?}");
    let clash = all(&format!("{BASE}{}", vip.replace("vip.v", "vip.w")));
    assert_eq!(clash.len(), 1);
    assert!(printed(&clash[0]).contains("vip.w.services[0]: 203.0.113.1 tcp port 80 already belongs to another service; help: the other service is vip.v.services[0] on line 16"
    ));
}

#[test]
fn a_bad_name_or_kind_does_not_hide_what_is_wrong_inside() {
    check(&[
        (
            "[vip.v]\naddresses = [\"203.0.113.1\"]",
            "[vip.\"v v\"]\naddresses = [\"::\"]",
            &[
                (
                    14,
                    "vip.\"v v\"",
                    "invalid name \"v v\"",
                    "use 1 to 64 letters, digits, '.', '_' or '-', and do not start with '.' or '-'",
                ),
                (
                    15,
                    "vip.\"v v\".addresses[0]",
                    "VIP address :: is the unspecified address",
                    "use an address that other machines can reach",
                ),
            ],
        ),
        (
            "kind = \"gue\"",
            "kind = \"vxlan\"\nudp_checksum = 1\nsource_prefixes = [\"x\"]\ndont_fragment = 2",
            &[
                (
                    10,
                    "encapsulation.t.kind",
                    "\"kind\" must be \"gre\", \"ipip\", \"gue\" or \"l2\", got \"vxlan\"",
                    "",
                ),
                (11, "encapsulation.t.udp_checksum", "\"udp_checksum\" must be true or false, got 1", ""),
                (
                    12,
                    "encapsulation.t.source_prefixes[0]",
                    "prefix \"x\" has no length",
                    "write a prefix such as \"198.51.100.0/24\"",
                ),
                (13, "encapsulation.t.dont_fragment", "\"dont_fragment\" must be true or false, got 2", ""),
            ],
        ),
        (
            "[machine.lb1]\naddresses = [\"192.0.2.1\"]",
            "[machine.\".lb1\"]\naddresses = [\"192.0.2.1\", 4]",
            &[
                (
                    4,
                    "machine.\".lb1\"",
                    "invalid name \".lb1\"",
                    "use 1 to 64 letters, digits, '.', '_' or '-', and do not start with '.' or '-'",
                ),
                (
                    5,
                    "machine.\".lb1\".addresses[1]",
                    "\"addresses[1]\" must be the IP address of one host, got 4",
                    "for example \"198.18.1.1\"",
                ),
            ],
        ),
    ]);
}
