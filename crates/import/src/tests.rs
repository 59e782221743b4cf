//! Rules and what becomes of them: tables, a save as machines have it, the page, and any rules at all.

mod any;

use std::path::Path;

use config::{Config, Problems};

use super::{Import, Note, ipvs};

const SAVE: &str = include_str!("tests/ipvs.rules");

fn read(rules: &str) -> Result<Import, Problems> {
    ipvs(rules, Path::new("rules"))
}

/// What is made of rules that have nothing wrong.
fn import(rules: &str) -> Import {
    read(rules).unwrap_or_else(|problems| panic!("{problems}\n{rules}"))
}

/// A configuration as `config check` reads it, and its warnings.
fn configuration(toml: &str) -> (Config, Problems) {
    let key = |_: &config::SecretName| Ok("000102030405060708090a0b0c0d0e0f".to_owned());
    config::parse(toml, Path::new("a.toml"), &key).unwrap_or_else(|problems| panic!("{problems}\n{toml}"))
}

fn said(notes: &[Note]) -> Vec<String> {
    let kind = |note: &Note| if note.is_left_out { "left out: " } else { "" };
    notes.iter().map(|note| format!("{} {}{}", note.line, kind(note), note.words)).collect()
}

/// A service with one server.
fn one(service: &str, server: &str) -> String {
    format!("-A -t 203.0.113.1:80 {service}\n-a -t 203.0.113.1:80 -r 198.18.0.1{server}\n")
}

#[test]
fn a_save_as_machines_have_it_becomes_a_configuration_without_a_warning() {
    let import = import(SAVE);
    let (config, warnings) = configuration(&import.toml);
    assert_eq!(warnings.to_string(), "");
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
            "203.0.113.15 protocol 132 any FiveTuple: 198.18.6.1*1 L2".to_owned(),
        ]
    );
    let left_out: Vec<usize> =
        import.notes.iter().filter(|note| note.is_left_out).map(|note| note.line).collect();
    assert_eq!(left_out, [15, 26, 27], "the second port, and the mark with its server");
    let second = config.pool("203-0-113-14-tcp-any-2").unwrap();
    assert_eq!(second.members[0].backend.address.to_string(), "198.18.5.1");
    // The two services of one VIP that have the same servers share a pool.
    assert_eq!(config.pools().iter().filter(|pool| pool.name.contains("203-0-113-10")).count(), 1);
}

#[test]
fn each_thing_without_a_counterpart_is_said_with_its_line() {
    let counted = "1 -s wlc: connections are not counted: the hash of a flow chooses, by weight";
    let six = |mask| {
        let service = "-t [2001:db8::1]:80";
        format!("-A {service} -p 5 -M {mask}\n-a {service} -r 2001:db8:18::1")
    };
    for (rules, notes) in [
        (one("", " -i"), vec![counted]),
        (one("-s wlc -x", ""), vec![]),
        (
            one("-s mh", ""),
            vec!["1 -s mh: the table is another, so that a client may get another backend than before"],
        ),
        (
            one("", " -w 0 -x 100 -y 0"),
            vec![counted, "2 -x, -y: connections of backend 198.18.0.1 are not limited"],
        ),
        (one("", " -x 0 -y 0"), vec![counted]),
        (
            one("-s rr", " -w 5"),
            vec![
                "1 -s rr: nothing takes turns: the hash of a flow chooses, by weight",
                "1 -s rr takes no weights: each backend has 1",
            ],
        ),
        (
            one("-s sed", " -w 65536"),
            vec![
                "1 -s sed: connections are not counted: the hash of a flow chooses, by weight",
                "1 weights are divided by 2, to 65535 at most",
            ],
        ),
        (
            one("-p", ""),
            vec![
                counted,
                "1 -p 300: a client keeps its backend by its address, while the pool is the same, and not for a time",
            ],
        ),
        (
            one("-p 5 -M 255.255.255.255", ""),
            vec![
                counted,
                "1 -p 5: a client keeps its backend by its address, while the pool is the same, and not for a time",
            ],
        ),
        (
            six("128"),
            vec![
                counted,
                "1 -p 5: a client keeps its backend by its address, while the pool is the same, and not for a time",
            ],
        ),
        (
            six("127"),
            vec![
                counted,
                "1 -p 5: a client keeps its backend by its address, while the pool is the same, and not for a time",
                "1 -M 127: each address is hashed for itself, so that those of one network may get several backends",
            ],
        ),
        (one("-o", ":80"), vec![counted, "1 -o: packets of one flow go to one backend"]),
        (
            one("", ":81 -m"),
            vec![
                counted,
                "2 -m: backend 198.18.0.1 needs the VIP, takes off a tunnel, and answers the client itself (docs/backends.md)",
                "2 port 81 of backend 198.18.0.1: a packet keeps port 80, where it has to listen",
            ],
        ),
        (
            one("", " -i --tun-type gue --tun-port 1 --tun-remcsum"),
            vec![
                counted,
                "2 --tun-port 1: GUE goes to port 6080 of backend 198.18.0.1",
                "2 --tun-remcsum: the tunnel to backend 198.18.0.1 has no checksum",
            ],
        ),
        (
            one("", " -i --tun-type gre --tun-csum"),
            vec![counted, "2 --tun-csum: GRE to backend 198.18.0.1 has no checksum"],
        ),
        (
            one("", "") + "-a -t 203.0.113.1:80 -r 127.0.0.1:80",
            vec![counted, "3 left out: server 127.0.0.1:80: the balancer itself, or a VIP, is no backend"],
        ),
        (
            one("", "") + "-A -f 1 -6 -s rr",
            vec![
                counted,
                "3 left out: the firewall mark 1 of IPv6: it has no address: a service of each address and port, all with one pool, is near it",
            ],
        ),
        (
            one("", "") + "-A -u 203.0.113.1:80",
            vec![counted, "3 left out: udp 203.0.113.1:80: it has no server that can be a backend"],
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
fn what_is_no_rule_is_refused_with_its_line_and_what_is_allowed() {
    let service = "-A -t 203.0.113.1:80 -s rr\n";
    for (rules, problem) in [
        ("", "rules: found no rule of IPVS, allowed what `ipvsadm -S -n` prints"),
        ("# nothing\n\n", "rules: found no rule of IPVS, allowed what `ipvsadm -S -n` prints"),
        (
            "-C",
            "rules:1:1: command: found \"-C\", allowed -A for a service, or -a for a server of one, as `ipvsadm -S -n` prints them",
        ),
        (
            "-A -t www.example:http",
            "rules:1:7: -t: found \"www.example:http\", allowed an address and a port in numbers, as `-n` prints them: 203.0.113.10:80, [2001:db8::10]:80",
        ),
        ("-A -t 203.0.113.1:65536", "rules:1:7: -t: found \"203.0.113.1:65536\""),
        (
            "-A -t 203.0.113.1 -s rr",
            "rules:1:24: -p: found nothing, allowed -p with port 0, which stands for all ports",
        ),
        ("-A -t [fe80::1%1]:80", "rules:1:7: -t: found \"[fe80::1%1]:80\""),
        ("-A -s rr", "rules:1:9: option: found nothing, allowed one of -t, -u, --sctp-service and -f"),
        ("-A -t 203.0.113.1:80 -u 203.0.113.1:80", "rules:1:22: option: found \"-u\", allowed one of -t, -u"),
        ("-A -f 0", "rules:1:7: -f: found \"0\", allowed a mark from 1 to 4294967295"),
        (
            "-A -t 203.0.113.1:80 -s best",
            "rules:1:25: -s: found \"best\", allowed rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh",
        ),
        ("-A -t 203.0.113.1:80 --scheduler=best", "rules:1:34: -s: found \"best\""),
        ("-A -t 203.0.113.1:80 -s", "rules:1:24: -s: found nothing, allowed a value"),
        ("-A -t 203.0.113.1:80 -o -o", "rules:1:25: option: found \"-o\", allowed each option once"),
        ("-A -t 203.0.113.1:80 --ops=1", "rules:1:28: --ops: found \"1\", allowed no value"),
        (
            "-A -t 203.0.113.1:80 -w 1",
            "rules:1:22: option: found \"-w\", allowed -t, -u, --sctp-service, -f, -6, -s, -p, -M, --pe, -o, -b",
        ),
        ("-A -t 203.0.113.1:80 -p 0", "rules:1:25: -p: found \"0\", allowed seconds from 1"),
        ("-A -t 203.0.113.1:80 -p 5 -M 0", "rules:1:30: -M: found \"0\", allowed a mask"),
        (
            "-A -t 203.0.113.1:80 -b sh-port,x",
            "rules:1:25: -b: found \"sh-port,x\", allowed sh-fallback, sh-port, mh-fallback, mh-port, flag-1",
        ),
        (
            &format!("{service}{service}"),
            "rules:2:1: -A: found tcp 203.0.113.1:80 a second time, after line 1, allowed each service once",
        ),
        (
            "-a -t 203.0.113.1:80 -r 198.18.0.1:80",
            "rules:1:1: -a: found a server of tcp 203.0.113.1:80, which no line before adds, allowed a service first",
        ),
        (&format!("{service}-a -t 203.0.113.1:80"), "rules:2:21: -r: found nothing, allowed an address"),
        (
            &format!("{service}-a -t 203.0.113.1:80 -r 198.18.0.1 -w -1"),
            "rules:2:39: -w: found \"-1\", allowed 0 to 2147483647",
        ),
        (
            &format!("{service}-a -t 203.0.113.1:80 -r 198.18.0.1 -w 2147483648"),
            "rules:2:39: -w: found \"2147483648\"",
        ),
        (
            &format!("{service}-a -t 203.0.113.1:80 -r 198.18.0.1 -x 65536"),
            "rules:2:39: -x: found \"65536\", allowed 0 to 65535",
        ),
        (
            &format!("{service}-a -t 203.0.113.1:80 -r 198.18.0.1 -g -i"),
            "rules:2:39: option: found \"-i\", allowed one of -g, -i and -m",
        ),
        (
            &format!("{service}-a -t 203.0.113.1:80 -r 198.18.0.1 -i --tun-type fou"),
            "rules:2:50: --tun-type: found \"fou\", allowed ipip, gue, gre",
        ),
        (
            &format!("{service}-a -t 203.0.113.1:80 -r 198.18.0.1 -i --tun-type gue"),
            "rules:2:53: --tun-port: found nothing, allowed the port of --tun-type gue",
        ),
        (
            &format!("{service}-a -t 203.0.113.1:80 -r 198.18.0.1\n-a -t 203.0.113.1:80 -r 198.18.0.1:0"),
            "rules:3:1: -r: found 198.18.0.1:0 a second time, after line 2, allowed each server of a service once",
        ),
        ("\u{e9}", "rules:1:1: command: found \"\u{e9}\""),
    ] {
        let problems = read(rules).map(|import| import.toml).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems}");
        assert!(problems.to_string().starts_with(problem), "{problem}\n{problems}");
    }
    let many = "x\n".repeat(1_000);
    assert_eq!(read(&many).unwrap_err().len(), 100);
    // What is wrong with a service is no fault of its servers.
    assert_eq!(read("-A -t 203.0.113.1:80 -s x\n-a -t 203.0.113.1:80 -r 198.18.0.1").unwrap_err().len(), 1);
}

#[test]
fn long_options_and_whole_command_lines_say_the_same() {
    let short = "-A -t 203.0.113.1:80 -s sh -p 9 -b sh-port\n-a -t 203.0.113.1:80 -r 198.18.0.1:80 -i -w 7\n";
    let long = "\tipvsadm --add-service --tcp-service=203.0.113.1:80 --scheduler sh --persistent 9 --sched-flags=flag-2\r\n\
                --add-server --weight 7 --ipip --tcp-service 203.0.113.1:80 --real-server=198.18.0.1:80\r\n";
    assert_eq!(import(short), import(long));
}

#[test]
fn a_stand_in_is_no_address_of_the_rules() {
    let rules = "-A -t 192.0.2.1:80\n-a -t 192.0.2.1:80 -r 192.0.2.2\n-a -t 192.0.2.1:80 -r 2001:db8::1 -i\n";
    let (config, _) = configuration(&import(rules).toml);
    let addresses: Vec<String> = config.machines()[0].addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["192.0.2.3", "2001:db8::2"]);
}

#[test]
fn a_large_pool_gets_a_large_table_and_many_vips_their_room() {
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
fn the_page_shows_what_is_printed() {
    let page = include_str!("../../../docs/migration.md");
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
