//! Property tests which check that rules are either rejected or converted into an equivalent
//! configuration. The expected configuration is computed from the generated rules, not from the
//! parsed rules.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use config::Config;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{configuration, import, read};

#[derive(Clone, Debug)]
struct Rule {
    protocol: &'static str,
    address: SocketAddr,
    mark: bool,
    scheduler: &'static str,
    flags: &'static str,
    persistence: &'static str,
    more: &'static str,
    servers: Vec<Target>,
}

#[derive(Clone, Debug)]
struct Target {
    address: SocketAddr,
    way: (&'static str, &'static str),
    weight: u32,
    more: &'static str,
}

/// Each forwarding method in the form of a rule, with the corresponding encapsulation.
const WAYS: [(&str, &str); 8] = [
    ("-g", "L2"),
    ("-i", "Ipip"),
    ("-i --tun-type ipip", "Ipip"),
    ("-m", "Ipip"),
    ("-i --tun-type gre --tun-csum", "Gre"),
    ("-i --tun-type gue --tun-port 6080 --tun-nocsum", "Gue { udp_checksum: false }"),
    ("-i --tun-type gue --tun-port 6081 --tun-remcsum", "Gue { udp_checksum: false }"),
    ("-i --tun-type gue --tun-port 6080 --tun-csum", "Gue { udp_checksum: true }"),
];

/// Generates an address from a small set, so that several rules use the same address. Some backend
/// addresses are also VIPs, and some addresses cannot be backends.
fn address() -> impl Strategy<Value = IpAddr> {
    let few = [
        "192.0.2.1",
        "198.18.0.1",
        "198.18.0.2",
        "203.0.113.1",
        "203.0.113.2",
        "2001:db8::1",
        "::2",
        "2001:db8::",
    ];
    let none = ["127.0.0.1", "0.0.0.0", "224.0.0.1", "::1", "fe80::1", "::ffff:192.0.2.1", "255.255.255.255"];
    let text = |text: &str| text.parse().unwrap();
    prop_oneof![
        12 => select(few.map(text).to_vec()),
        1 => select(none.map(text).to_vec()),
        3 => any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
        3 => any::<u128>().prop_map(|bits| IpAddr::V6(bits.into())),
    ]
}

fn socket() -> impl Strategy<Value = SocketAddr> {
    (address(), select(vec![80_u16, 443, 0, 65_535]))
        .prop_map(|(address, port)| SocketAddr::new(address, port))
}

fn target() -> impl Strategy<Value = Target> {
    let weight = prop_oneof![select(vec![0_u32, 1, 2, 65_535, 65_536, 2_147_483_647]), 0..200_u32];
    let more = select(vec!["", " -x 10", " -x 10 -y 5"]);
    let all = (socket(), select(WAYS.to_vec()), weight, more);
    all.prop_map(|(address, way, weight, more)| Target { address, way, weight, more })
}

fn rule() -> impl Strategy<Value = Rule> {
    let schedulers =
        vec!["rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh"];
    let place = (select(vec!["-t", "-u", "--sctp-service"]), socket(), prop::bool::weighted(0.1));
    let how = (select(schedulers), select(vec!["", " -b sh-port", " -b mh-fallback,mh-port", " -b flag-1"]));
    let more = (
        select(vec!["", " -p 300", " -p 1 -M 255.255.0.0", " -p 9 -M 64"]),
        select(vec!["", " -o", " --pe sip", " ops"]),
    );
    (place, how, more, vec(target(), 0..6)).prop_map(|(place, how, more, servers)| {
        let persistence = if place.1.port() == 0 && more.0.is_empty() { " -p 7" } else { more.0 };
        let ((protocol, address, mark), (scheduler, flags)) = (place, how);
        Rule { protocol, address, mark, scheduler, flags, persistence, more: more.1, servers }
    })
}

/// Generates rules that `ipvsadm` would accept: no duplicate services, and no duplicate servers in
/// a service.
fn rules() -> impl Strategy<Value = Vec<Rule>> {
    vec(rule(), 1..12).prop_map(|mut all| {
        let mut seen = BTreeSet::new();
        all.retain(|rule| {
            seen.insert(if rule.mark { ("-f", None) } else { (rule.protocol, Some(rule.address)) })
        });
        for rule in &mut all {
            let mut seen = BTreeSet::new();
            rule.servers.retain(|server| seen.insert(server.address));
        }
        all
    })
}

fn place(rule: &Rule) -> String {
    if rule.mark { "-f 9".to_owned() } else { format!("{} {}", rule.protocol, rule.address) }
}

/// Returns the text of the rules and the line number of each service.
fn written(rules: &[Rule]) -> (String, Vec<usize>) {
    let (mut text, mut lines) = (String::new(), Vec::new());
    for rule in rules {
        lines.push(text.lines().count() + 1);
        let Rule { scheduler, flags, persistence, more, .. } = rule;
        let place = place(rule);
        text += &format!("-A {place} -s {scheduler}{persistence}{more}{flags}\n");
        for Target { address, way, weight, more } in &rule.servers {
            text += &format!("-a {place} -r {address} {} -w {weight}{more}\n", way.0);
        }
    }
    (text, lines)
}

/// Returns `true` if a configuration accepts the address as a backend address.
fn is_host(address: IpAddr) -> bool {
    let of_the_file = ["203.0.113.77", "192.0.2.77", "2001:db8::77"];
    let text = BARE.replace("BACKEND", &address.to_string());
    let key = |_: &config::SecretName| Ok("000102030405060708090a0b0c0d0e0f".to_owned());
    of_the_file.contains(&&*address.to_string()) || config::parse(&text, Path::new("a.toml"), &key).is_ok()
}

const BARE: &str = r#"
[cluster]
name = "c"
hash_key_file = "k"
[machine.m]
addresses = ["192.0.2.77", "2001:db8::77"]
interfaces = ["e"]
[pool.p]
backends = [{ name = "b", address = "BACKEND" }]
[vip.v]
addresses = ["203.0.113.77"]
services = [{ ports = [1], protocol = "tcp", pool = "p" }]
"#;

type Member = (IpAddr, u32, String);

/// Returns the hash policy of a service, the members of its pool, and the members of each fallback
/// pool.
fn found(config: &Config, rule: &Rule) -> Option<(String, Vec<Vec<Member>>)> {
    let vip = config.vips().iter().find(|vip| vip.addresses == [rule.address.ip()])?;
    let wanted = match (rule.protocol, rule.address.port()) {
        ("--sctp-service", 0) => "sctp any".to_owned(),
        ("--sctp-service", port) => format!("sctp {port}"),
        ("-t", 0) => "tcp any".to_owned(),
        ("-t", port) => format!("tcp {port}"),
        (_, 0) => "udp any".to_owned(),
        (_, port) => format!("udp {port}"),
    };
    let mut services = vip.services.iter();
    let service = services.find(|service| format!("{} {}", service.protocol, service.ports) == wanted)?;
    let (mut all, mut next) = (Vec::new(), Some(&service.pool));
    while let Some(pool) = next {
        let members = pool.members.iter();
        let member = |member: &config::Member| {
            (member.backend.address, member.weight, format!("{:?}", member.encapsulation.kind))
        };
        all.push(members.map(member).collect());
        next = pool.fallback.as_ref().and_then(|fallback| config.pool(&fallback.pool));
    }
    Some((format!("{:?}", service.hash), all))
}

/// Returns the expected weight of a server. `most` is the largest weight in the service.
fn share(rule: &Rule, weight: u32, most: u32) -> u32 {
    match (rule.scheduler, weight) {
        (_, 0) => 0,
        ("rr" | "lc" | "dh" | "fo", _) => 1,
        _ if most <= 65_535 => weight,
        _ => (weight / (most / 65_535 + u32::from(!most.is_multiple_of(65_535)))).max(1),
    }
}

fn holds(rules: &[Rule]) {
    let (text, lines) = written(rules);
    let import = import(&text);
    let (config, warnings) = configuration(&import.toml);
    let may = ["have weight 0", "no VIP is configured", " no health checks"];
    let is_allowed = |message: &str| may.iter().any(|words| message.contains(words));
    assert!(warnings.iter().all(|warning| is_allowed(&warning.message)), "{warnings}\n{text}");
    let notes = import.notes.iter().filter(|note| note.is_left_out);
    let left_out: BTreeSet<usize> = notes.map(|note| note.line).collect();
    let addressed = rules.iter().filter(|rule| !rule.mark);
    let vips: BTreeSet<IpAddr> = addressed.map(|rule| rule.address.ip()).collect();
    let mut services = 0;
    for (rule, line) in rules.iter().zip(lines) {
        let mut seen = BTreeSet::new();
        let can_be = |address: IpAddr| is_host(address) && !vips.contains(&address) && seen.insert(address);
        let kept: Vec<bool> = rule.servers.iter().map(|server| server.address.ip()).map(can_be).collect();
        let is_kept = !rule.mark && is_host(rule.address.ip()) && kept.contains(&true);
        assert_eq!(!left_out.contains(&line), is_kept, "line {line}\n{text}");
        for (more, kept) in kept.iter().enumerate() {
            let line = line + 1 + more;
            assert_eq!(!left_out.contains(&line), is_kept && *kept, "line {line}\n{text}");
        }
        if is_kept {
            services += 1;
            says_the_same(&config, rule, &kept).unwrap_or_else(|| panic!("line {line}\n{text}"));
        }
    }
    assert_eq!(config.vips().iter().map(|vip| vip.services.len()).sum::<usize>(), services, "{text}");
}

/// Compares a translated service with its rule. Returns `None` if the configuration has no such
/// service.
fn says_the_same(config: &Config, rule: &Rule, kept: &[bool]) -> Option<()> {
    let (hash, tiers) = found(config, rule)?;
    let is_hashed = ["sh", "mh"].contains(&rule.scheduler) && !rule.flags.contains("-port");
    let by_source = is_hashed || !rule.persistence.is_empty();
    assert_eq!(hash, if by_source { "Source" } else { "FiveTuple" }, "{rule:?}");
    let servers: Vec<&Target> =
        rule.servers.iter().zip(kept).filter(|(_, kept)| **kept).map(|(server, _)| server).collect();
    let heaviest = servers.iter().rev().max_by_key(|server| server.weight)?;
    let first: Vec<IpAddr> = tiers[0].iter().filter(|member| member.1 > 0).map(|member| member.0).collect();
    if rule.scheduler == "fo" && heaviest.weight > 0 {
        assert_eq!(first, [heaviest.address.ip()], "{rule:?}");
    }
    let wanted = |server: &&Target| {
        (server.address.ip(), share(rule, server.weight, heaviest.weight), server.way.1.to_owned())
    };
    let mut wanted: Vec<Member> = servers.iter().map(wanted).collect();
    let mut all = tiers.concat();
    all.sort();
    wanted.sort();
    assert_eq!(all, wanted, "{rule:?}");
    Some(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn valid_rules_give_an_equivalent_configuration(rules in rules()) {
        holds(&rules);
    }

    #[test]
    fn any_bytes_are_rejected_or_give_a_configuration(bytes: Vec<u8>) {
        if let Ok(import) = read(&String::from_utf8_lossy(&bytes)) {
            configuration(&import.toml);
        }
    }

    #[test]
    fn any_rule_words_are_rejected_or_give_a_configuration(words in vec(select(WORDS.to_vec()), 0..40)) {
        if let Ok(import) = read(&words.join(" ").replace(" \n ", "\n")) {
            configuration(&import.toml);
        }
    }

    #[test]
    fn damaged_rules_are_rejected_or_give_a_configuration(at: prop::sample::Index, to: char) {
        let mut save: Vec<char> = super::SAVE.chars().collect();
        let at = at.index(save.len());
        save[at] = to;
        if let Ok(import) = read(&save.into_iter().collect::<String>()) {
            configuration(&import.toml);
        }
    }
}

const WORDS: [&str; 30] = [
    "\n",
    "\n",
    "\n",
    "\n",
    "-A",
    "-A",
    "-a",
    "-a",
    "-t",
    "-t",
    "203.0.113.1:80",
    "203.0.113.1:80",
    "-u",
    "[2001:db8::1]:80",
    "-r",
    "-r",
    "198.18.0.1",
    "[2001:db8::2]:80",
    "-s",
    "mh",
    "-p",
    "9",
    "-w",
    "-i",
    "-g",
    "-m",
    "--pe",
    "\u{1b}\"",
    "-f",
    "--tun-type=gre",
];
