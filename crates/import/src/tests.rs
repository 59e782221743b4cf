//! Tests of the conversion, which use tables of rules and notes, a realistic rule file, the example
//! in the docs, and random rules.

mod any;

use std::collections::BTreeSet;
use std::path::Path;

use config::{Config, Problems};

use super::{Import, Note, ipvs};

const SAVE: &str = include_str!("tests/ipvs.rules");

fn read(rules: &str) -> Result<Import, Problems> {
    ipvs(rules, Path::new("rules"))
}

/// Converts valid rules.
fn import(rules: &str) -> Import {
    read(rules).unwrap_or_else(|problems| panic!("{problems}\n{rules}"))
}

/// Returns the parsed configuration and its warnings.
fn configuration(toml: &str) -> (Config, Problems) {
    let key = |_: &config::SecretName| Ok("000102030405060708090a0b0c0d0e0f".to_owned());
    config::parse(toml, Path::new("a.toml"), &key).unwrap_or_else(|problems| panic!("{problems}\n{toml}"))
}

fn said(notes: &[Note]) -> Vec<String> {
    let kind = |note: &Note| if note.is_left_out { "left out: " } else { "" };
    notes.iter().map(|note| format!("{} {}{}", note.line, kind(note), note.words)).collect()
}

/// Returns the rules of a service with one server.
fn one(service: &str, server: &str) -> String {
    format!("-A -t 203.0.113.1:80 {service}\n-a -t 203.0.113.1:80 -r 198.18.0.1{server}\n")
}

#[test]
fn realistic_rules_give_a_configuration_with_tcp_checks() {
    let import = import(SAVE);
    let (config, warnings) = configuration(&import.toml);
    let warnings = warnings.to_string();
    assert!(
        warnings.contains("have no health checks") && warnings.matches("warning").count() == 1,
        "{warnings}"
    );
    for service in config.vips().iter().flat_map(|vip| &vip.services) {
        let checks = service.pool.members.iter().flat_map(|member| member.checks.iter());
        let checked: BTreeSet<u16> = checks.map(|check| check.kind.port()).collect();
        match &service.ports {
            config::Ports::Listed(ranges) if service.protocol == config::Protocol::Tcp => {
                assert!(checked.iter().eq([ranges[0].start()]), "{service:?}");
            }
            _ => assert!(checked.is_empty(), "{service:?}"),
        }
    }
    let services =
        config.vips().iter().flat_map(|vip| vip.services.iter().map(move |service| (vip, service)));
    let services: Vec<String> = services
        .map(|(vip, service)| {
            let members = service.pool.members.iter().map(|member| {
                format!("{}*{} {:?}", member.backend.address, member.weight, member.encapsulation.kind)
            });
            let members = members.collect::<Vec<_>>().join(", ");
            let fallback = service.pool.fallback.as_ref().map(|fallback| format!(" else {}", fallback.pool));
            let (vip, fallback) = (vip.addresses[0], fallback.unwrap_or_default());
            format!("{vip} {} {} {:?}: {members}{fallback}", service.protocol, service.ports, service.hash)
        })
        .collect();
    let web = "198.18.1.1*10 Ipip, 198.18.1.2*20 Ipip, 198.18.1.3*0 Ipip";
    assert_eq!(
        services,
        [
            "2001:db8:f::10 tcp 443 FiveTuple: 2001:db8:18::1*3 Gue { udp_checksum: true }, 2001:db8:18::2*4 Gue { udp_checksum: false }".to_owned(),
            format!("203.0.113.10 tcp 80 FiveTuple: {web}"),
            format!("203.0.113.10 tcp 443 Source: {web}"),
            "203.0.113.11 udp 53 Source: 198.18.2.1*1 L2, 198.18.2.2*1 L2".to_owned(),
            "203.0.113.12 tcp 8080 FiveTuple: 198.18.3.1*1 Ipip".to_owned(),
            "203.0.113.13 udp 5060 Source: 198.18.4.1*1 Gre".to_owned(),
            "203.0.113.14 tcp any Source: 198.18.5.2*1 L2 else 203-0-113-14-tcp-any-2".to_owned(),
            "203.0.113.15 sctp 3868 FiveTuple: 198.18.6.1*1 L2".to_owned(),
        ]
    );
    let left_out: Vec<usize> =
        import.notes.iter().filter(|note| note.is_left_out).map(|note| note.line).collect();
    assert_eq!(left_out, [15, 26, 27], "the second port, and the mark with its server");
    let second = config.pool("203-0-113-14-tcp-any-2").unwrap();
    assert_eq!(second.members[0].backend.address.to_string(), "198.18.5.1");
}

/// A failed check takes a server out of all services of the pool, so only services that are checked
/// alike share a pool.
#[test]
fn each_tcp_port_has_its_own_pool_and_check() {
    let services = ["-t 203.0.113.1:80", "-t 203.0.113.1:443", "-u 203.0.113.1:443", "-t 203.0.113.2:80"];
    let rule = |service: &&str| format!("-A {service} -s rr\n-a {service} -r 198.18.0.1 -i\n");
    let import = import(&services.iter().map(rule).collect::<String>());
    let (config, _) = configuration(&import.toml);
    let pools = config.vips().iter().flat_map(|vip| &vip.services).map(|service| {
        let checks = service.pool.members[0].checks.iter();
        let checks: Vec<_> = checks.map(|check| (check.kind.port(), check.via)).collect();
        (&*service.pool.name, checks)
    });
    let by_vip = |port| vec![(port, config::Via::Vip)];
    assert_eq!(
        pools.collect::<Vec<_>>(),
        [
            ("203-0-113-1-tcp-80", by_vip(80)),
            ("203-0-113-1-tcp-443", by_vip(443)),
            ("203-0-113-1-udp-443", vec![]),
            ("203-0-113-1-tcp-80", by_vip(80)),
        ]
    );
}

#[test]
fn notes_name_each_difference_with_its_line() {
    let counted = "1 -s wlc is replaced by weighted flow hashing, which does not count connections";
    let six = |mask| {
        let service = "-t [2001:db8::1]:80";
        format!("-A {service} -p 5 -M {mask}\n-a {service} -r 2001:db8:18::1")
    };
    for (rules, notes) in [
        (one("", " -i"), vec![counted]),
        (one("-s wlc -x", ""), vec![]),
        (
            one("-s mh", ""),
            vec![
                "1 -s mh uses a different hash table here, so a client may get a different backend than before",
            ],
        ),
        (
            one("", " -w 0 -x 100 -y 0"),
            vec![counted, "2 -x and -y are ignored, so connections of backend 198.18.0.1 are not limited"],
        ),
        (one("", " -x 0 -y 0"), vec![counted]),
        (
            one("-s rr", " -w 5"),
            vec![
                "1 -s rr is replaced by weighted flow hashing, which does not rotate through the backends",
                "1 -s rr ignores weights, so each backend has weight 1",
            ],
        ),
        (
            one("-s sed", " -w 65536"),
            vec![
                "1 -s sed is replaced by weighted flow hashing, which does not count connections",
                "1 weights are divided by 2, because the maximum weight is 65535",
            ],
        ),
        (
            one("-p", ""),
            vec![
                counted,
                "1 -p 300 becomes hash = \"source\": a client keeps its backend until the pool changes, without a timeout",
            ],
        ),
        (
            one("-p 5 -M 255.255.255.255", ""),
            vec![
                counted,
                "1 -p 5 becomes hash = \"source\": a client keeps its backend until the pool changes, without a timeout",
            ],
        ),
        (
            six("128"),
            vec![
                counted,
                "1 -p 5 becomes hash = \"source\": a client keeps its backend until the pool changes, without a timeout",
            ],
        ),
        (
            six("127"),
            vec![
                counted,
                "1 -p 5 becomes hash = \"source\": a client keeps its backend until the pool changes, without a timeout",
                "1 -M 127 has no counterpart, so clients of the same network may get different backends",
            ],
        ),
        (
            one("-o", ":80"),
            vec![counted, "1 -o has no counterpart, so all packets of a flow go to one backend"],
        ),
        (
            one("", ":81 -m"),
            vec![
                counted,
                "2 -m becomes a tunnel: backend 198.18.0.1 needs the VIP, decapsulates, and replies to clients directly (docs/how-to/prepare-backends.md)",
                "2 port 81 of backend 198.18.0.1 is ignored: each packet keeps port 80, so the backend must listen there",
            ],
        ),
        (
            one("", " -i --tun-type gue --tun-port 1 --tun-remcsum"),
            vec![
                counted,
                "2 --tun-port 1 is ignored, so GUE to backend 198.18.0.1 uses port 6080",
                "2 --tun-remcsum is ignored, so the tunnel to backend 198.18.0.1 has no checksum",
            ],
        ),
        (
            one("", " -i --tun-type gre --tun-csum"),
            vec![counted, "2 --tun-csum is ignored, so GRE to backend 198.18.0.1 has no checksum"],
        ),
        (
            one("", "") + "-a -t 203.0.113.1:80 -r 127.0.0.1:80",
            vec![
                counted,
                "3 left out: server 127.0.0.1:80: addresses of VIPs and non-unicast addresses cannot be backends",
            ],
        ),
        (
            one("", "") + "-A -f 1 -6 -s rr",
            vec![
                counted,
                "3 left out: IPv6 firewall mark 1 has no counterpart; define a service per address and port with the same pool",
            ],
        ),
        (
            one("", "") + "-A -u 203.0.113.1:80",
            vec![counted, "3 left out: udp 203.0.113.1:80 has no server that can be a backend"],
        ),
    ] {
        let Ok(import) = read(&rules) else {
            assert!(notes.is_empty(), "{rules}");
            continue;
        };
        assert_eq!(said(&import.notes), notes, "{rules}");
        for note in said(&import.notes) {
            assert!(
                import.toml.contains(&format!("# line {}", note.replacen(' ', ": ", 1))),
                "{note}\n{}",
                import.toml
            );
        }
        configuration(&import.toml);
    }
}

#[test]
fn invalid_rules_are_rejected_with_line_and_option() {
    let service = "-A -t 203.0.113.1:80 -s rr\n";
    for (rules, problem) in [
        ("", "rules: the text has no IPVS rule"),
        ("# nothing\n\n", "rules: the text has no IPVS rule"),
        ("-C", "rules:1:1: \"-C\" is not a command of a rule"),
        ("-A -t www.example:http", "rules:1:7: invalid value \"www.example:http\" for -t"),
        ("-A -t 203.0.113.1:65536", "rules:1:7: invalid value \"203.0.113.1:65536\" for -t"),
        ("-A -t 203.0.113.1 -s rr", "rules:1:24: port 0 (all ports) needs -p"),
        ("-A -t [fe80::1%1]:80", "rules:1:7: invalid value \"[fe80::1%1]:80\" for -t"),
        ("-A -s rr", "rules:1:9: the rule needs one of -t, -u, --sctp-service and -f"),
        (
            "-A -t 203.0.113.1:80 -u 203.0.113.1:80",
            "rules:1:22: option \"-u\" conflicts with an earlier option",
        ),
        ("-A -f 0", "rules:1:7: invalid value \"0\" for -f"),
        ("-A -t 203.0.113.1:80 -s best", "rules:1:25: invalid value \"best\" for -s"),
        ("-A -t 203.0.113.1:80 --scheduler=best", "rules:1:34: invalid value \"best\" for -s"),
        ("-A -t 203.0.113.1:80 -s", "rules:1:24: option -s needs a value"),
        ("-A -t 203.0.113.1:80 -o -o", "rules:1:25: option \"-o\" is given twice"),
        ("-A -t 203.0.113.1:80 --ops=1", "rules:1:28: option --ops takes no value"),
        ("-A -t 203.0.113.1:80 -w 1", "rules:1:22: \"-w\" is not an option of -A"),
        ("-A -t 203.0.113.1:80 -p 0", "rules:1:25: invalid value \"0\" for -p"),
        ("-A -t 203.0.113.1:80 -p 5 -M 0", "rules:1:30: invalid value \"0\" for -M"),
        ("-A -t 203.0.113.1:80 -b sh-port,x", "rules:1:25: invalid value \"sh-port,x\" for -b"),
        (&format!("{service}{service}"), "rules:2:1: tcp 203.0.113.1:80 is already defined on line 1"),
        (
            "-a -t 203.0.113.1:80 -r 198.18.0.1:80",
            "rules:1:1: no earlier line defines the service tcp 203.0.113.1:80",
        ),
        (&format!("{service}-a -t 203.0.113.1:80"), "rules:2:21: the rule needs -r"),
        (
            &format!("{service}-a -t 203.0.113.1:80 -r 198.18.0.1 -w -1"),
            "rules:2:39: invalid value \"-1\" for -w",
        ),
        (
            &format!("{service}-a -t 203.0.113.1:80 -r 198.18.0.1 -w 2147483648"),
            "rules:2:39: invalid value \"2147483648\" for -w",
        ),
        (
            &format!("{service}-a -t 203.0.113.1:80 -r 198.18.0.1 -x 65536"),
            "rules:2:39: invalid value \"65536\" for -x",
        ),
        (
            &format!("{service}-a -t 203.0.113.1:80 -r 198.18.0.1 -g -i"),
            "rules:2:39: option \"-i\" conflicts with an earlier option",
        ),
        (
            &format!("{service}-a -t 203.0.113.1:80 -r 198.18.0.1 -i --tun-type fou"),
            "rules:2:50: invalid value \"fou\" for --tun-type",
        ),
        (
            &format!("{service}-a -t 203.0.113.1:80 -r 198.18.0.1 -i --tun-type gue"),
            "rules:2:53: --tun-type gue needs --tun-port",
        ),
        (
            &format!("{service}-a -t 203.0.113.1:80 -r 198.18.0.1\n-a -t 203.0.113.1:80 -r 198.18.0.1:0"),
            "rules:3:1: server 198.18.0.1:0 is already defined on line 2",
        ),
        ("\u{e9}", "rules:1:1: \"\u{e9}\" is not a command"),
    ] {
        let problems = read(rules).map(|import| import.toml).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems}");
        let message = problems.iter().map(ToString::to_string).next().unwrap();
        assert!(message.starts_with(problem), "{problem}\n{problems}");
    }
    let many = "x\n".repeat(1_000);
    assert_eq!(read(&many).unwrap_err().len(), 100);
    // The servers of an invalid service do not cause further problems.
    assert_eq!(read("-A -t 203.0.113.1:80 -s x\n-a -t 203.0.113.1:80 -r 198.18.0.1").unwrap_err().len(), 1);
}

#[test]
fn long_options_and_command_lines_are_equivalent() {
    let short = "-A -t 203.0.113.1:80 -s sh -p 9 -b sh-port\n-a -t 203.0.113.1:80 -r 198.18.0.1:80 -i -w 7\n";
    let long = "\tipvsadm --add-service --tcp-service=203.0.113.1:80 --scheduler sh --persistent 9 --sched-flags=flag-2\r\n\
                --add-server --weight 7 --ipip --tcp-service 203.0.113.1:80 --real-server=198.18.0.1:80\r\n";
    assert_eq!(import(short), import(long));
}

#[test]
fn placeholder_addresses_do_not_occur_in_the_rules() {
    let rules = "-A -t 192.0.2.1:80\n-a -t 192.0.2.1:80 -r 192.0.2.2\n-a -t 192.0.2.1:80 -r 2001:db8::1 -i\n";
    let (config, _) = configuration(&import(rules).toml);
    let addresses: Vec<String> = config.machines()[0].addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["192.0.2.3", "2001:db8::2"]);
}

#[test]
fn large_pools_and_many_vips_raise_the_limits() {
    let mut rules = "-A -t 203.0.113.1:80\n".to_owned();
    for number in 0..656 {
        rules += &format!("-a -t 203.0.113.1:80 -r 198.18.{}.{}\n", number / 256, number % 256);
    }
    for number in 0..4_096 {
        let vip = format!("198.19.{}.{}:80", number / 256, number % 256);
        rules += &format!("-A -t {vip}\n-a -t {vip} -r 198.18.0.1\n");
    }
    let (config, warnings) = configuration(&import(&rules).toml);
    assert_eq!(warnings.to_string(), "");
    assert_eq!((config.cluster().table_size, config.io().max_vips), (655_373, 4_097));
}

#[test]
fn docs_page_matches_the_output() {
    let page = include_str!("../../../docs/how-to/migrate.md");
    let after = page.split_once("```ipvsadm\n").expect("rules").1;
    let (rules, rest) = after.split_once("```\n").expect("an end of the rules");
    let (printed, rest) = rest.split_once("```toml\n").expect("TOML").1.split_once("```\n").expect("its end");
    let (errors, _) = rest.split_once("```text\n").expect("errors").1.split_once("```\n").expect("their end");
    let import = import(rules);
    assert_eq!(import.toml, printed);
    let lines = import.notes.iter().map(|note| {
        let kind = if note.is_left_out { "left out" } else { "different" };
        format!("standard input:{}: {kind}: {}\n", note.line, note.words)
    });
    assert_eq!(lines.collect::<String>(), errors);
    assert_eq!(configuration(printed).1.to_string(), "");
}
