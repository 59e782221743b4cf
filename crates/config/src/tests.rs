//! Tests that parse configuration text into a [`Config`], and helper functions for the test
//! modules.

mod admin;
mod announcements;
mod any_input;
mod check_kinds;
mod checks;
mod confined;
mod fallbacks;
mod files;
mod groups;
mod guards;
mod includes;
mod keyed;
mod keyed_refusals;
mod messages;
mod mtu;
mod peers;
mod pools;
mod ranges;
mod refusals;
mod remotes;
mod schema;
mod services;
mod shards;
mod size;
mod syntax;
mod total;
mod trace;
mod unchecked;
mod wiped;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forwarder::{HashPolicy, NoSocket};

use super::*;

pub(super) const EXAMPLE: &str = include_str!("../every-key.toml");
pub(super) const KEY: &str = "000102030405060708090a0b0c0d0e0f";

/// Parses a configuration text. The content of every secret is [`KEY`]. The pools of most tests
/// have no checks, so the warning about them is left out.
pub(super) fn parsed(text: &str) -> Result<(Config, Problems), Problems> {
    let parsed = parse(text, Path::new("etc/a.toml"), &|_| Ok(KEY.to_owned()));
    parsed
        .map(|(config, warnings)| (config, without_unchecked(&warnings)))
        .map_err(|all| without_unchecked(&all))
}

/// Leaves out the warning about pools without health checks.
pub(super) fn without_unchecked(problems: &Problems) -> Problems {
    problems.iter().filter(|problem| !problem.message.contains(" no health checks")).cloned().collect()
}

/// Returns a configuration with the given pools and VIPs.
pub(super) fn with_pools(pools_and_vips: &str) -> String {
    let head = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n[machine.lb1]\n\
                addresses = [\"192.0.2.1\", \"2001:db8::1\"]\ninterfaces = [\"eth0\"]\n";
    format!("{head}{pools_and_vips}")
}

/// A small valid file. Most tests replace a part of it.
pub(super) const BASE: &str = r#"[cluster]
name = "c"
hash_key_file = "k"
[machine.lb1]
addresses = ["192.0.2.1"]
interfaces = ["eth0"]
[io]
batch = 64
[encapsulation.t]
kind = "gue"
[pool.p]
encapsulation = "t"
backends = [{ name = "b1", address = "198.18.0.1" }]
[vip.v]
addresses = ["203.0.113.1"]
services = [{ ports = [80], protocol = "tcp", pool = "p" }]
"#;

/// A change to [`BASE`] and its problems: the text to replace, its replacement, and the expected
/// problems with line, field, message and help.
pub(super) type Row =
    (&'static str, &'static str, &'static [(usize, &'static str, &'static str, &'static str)]);

/// Returns the errors and warnings about a configuration text.
pub(super) fn all(text: &str) -> Vec<Problem> {
    let problems = parsed(text).map_or_else(|errors| errors, |(_, warnings)| warnings);
    problems.iter().cloned().collect()
}

/// Formats a problem on one line: position, severity, field, message and help.
pub(super) fn printed(problem: &Problem) -> String {
    let Problem { field, message, help, severity, .. } = problem;
    let place = match (problem.line(), problem.column()) {
        (Some(line), Some(column)) => format!("{}:{line}:{column}:", problem.file().display()),
        _ => format!("{}:", problem.file().display()),
    };
    let severity = if *severity == Severity::Warning { "warning: " } else { "" };
    let help = help.as_ref().map(|help| format!("; help: {help}")).unwrap_or_default();
    format!("{place} {severity}{field}: {message}{help}")
}

pub(super) fn all_printed(problems: &Problems) -> String {
    problems.iter().map(printed).collect::<Vec<_>>().join("\n")
}

/// Returns the known keys that the help line for an unknown key lists.
pub(super) fn known_keys(problem: &Problem) -> Option<Vec<&str>> {
    let keys = problem.help.as_deref()?.strip_prefix("known keys: ")?;
    problem.message.starts_with("unknown key ").then(|| keys.split(", ").collect())
}

/// Returns `true` if a problem has this message and this help line. If `help` is empty, the problem
/// must not have a help line.
pub(super) fn says(problem: &Problem, message: &str, help: &str) -> bool {
    problem.message == message && problem.help.as_deref().unwrap_or_default() == help
}

/// Applies each change to [`BASE`] and compares all problems.
pub(super) fn check(rows: &[Row]) {
    for (from, to, expected) in rows {
        assert!(from.is_empty() || BASE.contains(from), "no {from:?} in the base");
        let text = if from.is_empty() { format!("{to}{BASE}") } else { BASE.replacen(from, to, 1) };
        let problems = all(&text);
        let shown: Vec<String> = problems.iter().map(printed).collect();
        assert_eq!(problems.len(), expected.len(), "{to:?}: {shown:#?}");
        for (problem, (line, field, message, help)) in problems.iter().zip(*expected) {
            assert_eq!((problem.line(), problem.field.as_str()), (Some(*line), *field), "{to:?}: {shown:#?}");
            assert!(says(problem, message, help), "{to:?}: {message:?}, {help:?} not in {shown:#?}");
        }
    }
}

#[test]
fn the_example_is_valid_and_without_warnings() {
    let (config, warnings) = parsed(EXAMPLE).unwrap();
    assert_eq!(warnings.to_string(), "");
    assert_eq!(config.cluster().name(), "fra1");
    assert_eq!(config.cluster().hash_key.bytes(), &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(config.machines().len(), 2);
    let lb2 = config.machine("lb2").unwrap();
    assert_eq!(lb2.addresses, ["192.0.2.3", "2001:db8:0:2::1"].map(|a| a.parse::<IpAddr>().unwrap()));
    assert_eq!((lb2.shard(), &*lb2.interfaces), (Some("a"), &["eth0".to_owned()][..]));
    assert!(config.machine("lb3").is_none());
    let web = config.pool("web").unwrap();
    let checks: Vec<&str> = web.members[0].checks.iter().map(|check| &*check.name).collect();
    assert_eq!(checks, ["web", "web-tcp"]);
    assert_eq!(web.fallback.as_ref().map(|fallback| &*fallback.pool), Some("web-spare"));
    let members: Vec<_> =
        web.members.iter().map(|m| (m.backend.name.to_string(), m.weight, m.leaf.to_string())).collect();
    let expected = [("b1", 1, "web-rack1"), ("b2", 2, "web-rack1"), ("b3", 6, "web-rack2")];
    assert_eq!(members, expected.map(|(name, weight, leaf)| (name.to_owned(), weight, leaf.to_owned())));
    let tunnel = &web.members[0].encapsulation;
    assert_eq!((&*tunnel.name, tunnel.kind), ("tunnel", packet::Encapsulation::Gre));
    let prefixes: Vec<String> = tunnel.source_prefixes.iter().map(ToString::to_string).collect();
    assert_eq!(prefixes, ["198.51.100.0/28", "2001:db8:5::/64"]);
    let www = config.vips().iter().find(|vip| &*vip.name == "www").unwrap();
    assert_eq!(&www.services[0].ports, &Ports::Listed(vec![80..=80, 443..=443]));
    assert_eq!((www.services[1].protocol, www.services[1].hash), (Protocol::Udp, HashPolicy::Addresses));
    assert!(Arc::ptr_eq(&www.services[0].pool, web));
}

/// Returns the TOML code blocks of a document.
fn blocks(page: &str) -> impl Iterator<Item = &str> {
    page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next())
}

fn is_quiet(text: &str) {
    let (_, warnings) = parsed(text).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    assert_eq!(warnings.to_string(), "", "{text}");
}

#[test]
fn the_examples_of_the_front_page_and_of_routers_are_quiet() {
    let whole = blocks(include_str!("../../../README.md")).next().unwrap();
    assert_eq!(parsed(whole).unwrap().0.vips().len(), 1);
    let mut more = blocks(include_str!("../../../docs/how-to/manage-the-configuration.md"));
    let (bgp, announce) = more.find_map(|block| block.split_once("[vip.www]\n")).unwrap();
    is_quiet(&(whole.replace("[vip.www]\n", &format!("[vip.www]\n{announce}")) + bgp));
}

#[test]
fn the_configuration_of_the_packages_is_quiet() {
    // The test has no systemd credentials, so `credential:NAME` is replaced by a file name.
    is_quiet(&include_str!("../../../config/start.toml").replace("credential:", ""));
}

#[test]
fn examples_have_no_errors_and_no_warnings() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config");
    let more = std::fs::read_dir(config.join("examples")).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = more.chain([config.join("sluicegate.toml")]).collect();
    assert!(files.len() > 10, "{files:?}");
    for file in files {
        let folder = files::Folder::new();
        folder.write("secrets/hash.key", KEY, 0o600);
        folder.write("secrets/admin.key", admin::PRIVATE, 0o600);
        folder.write("secrets/bgp.key", "s3cret\n", 0o600);
        folder.write("ca.pem", admin::CERTIFICATE, 0o644);
        folder.write("admin.pem", admin::CERTIFICATE, 0o644);
        folder.write("client.pem", admin::CERTIFICATE, 0o644);
        folder.write("secrets/client.key", admin::PRIVATE, 0o600);
        std::fs::create_dir(folder.0.join("lists")).unwrap();
        folder.write("lists/office.txt", "198.51.100.0/24\n", 0o644);
        folder.write("lists/abuse.txt", "198.51.100.66\n", 0o644);
        let path = folder.write("a.toml", std::fs::read_to_string(&file).unwrap(), 0o644);
        let (_, warnings) = load(&path).unwrap_or_else(|problems| panic!("{}:\n{problems}", file.display()));
        assert_eq!(warnings.to_string(), "", "{}", file.display());
    }
}

#[test]
fn every_whole_configuration_in_a_document_is_quiet() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["tutorial", "how-to"].map(|folder| root.join("docs").join(folder));
    let pages = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let pages = pages.map(|entry| entry.unwrap().path());
    let texts = pages.chain([root.join("README.md")]).map(|path| std::fs::read_to_string(path).unwrap());
    // The tutorials write the file with a shell command. This test has no systemd credentials.
    let all = texts.collect::<String>().replace("credential:", "");
    let all = all.replace("<<'END'\n[cluster]", "```toml\n[cluster]").replace("\nEND\n", "\n```\n");
    let whole: Vec<_> = blocks(&all).filter(|block| block.starts_with("[cluster]\n")).collect();
    assert_eq!(whole.len(), 6, "one in README, three in tutorials, two in migrate.md: {whole:?}");
    whole.into_iter().for_each(is_quiet);
}

#[test]
fn the_example_has_every_key() {
    let folder = files::Folder::new();
    // The commented-out key `threads = 4` needs software steering.
    let whole: String = EXAMPLE
        .replace("steering = \"hardware\"", "steering = \"software\"")
        .lines()
        .map(|line| {
            let key = line
                .strip_prefix('#')
                .filter(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '['));
            format!("{}\n", key.unwrap_or(line))
        })
        .collect();
    let path = folder.write("a.toml", &whole, 0o644);
    folder.write("secrets/hash.key", KEY, 0o600);
    folder.write("secrets/admin.key", admin::PRIVATE, 0o600);
    folder.write("secrets/bgp.key", "s3cret\n", 0o600);
    folder.write("ca.pem", admin::CERTIFICATE, 0o644);
    folder.write("admin.pem", admin::CERTIFICATE, 0o644);
    folder.write("client.pem", admin::CERTIFICATE, 0o644);
    folder.write("secrets/client.key", admin::PRIVATE, 0o600);
    std::fs::create_dir(folder.0.join("vips")).unwrap();
    folder.write("vips/none.toml", "", 0o644);
    std::fs::create_dir(folder.0.join("lists")).unwrap();
    folder.write("lists/office.txt", "198.51.100.0/24\n", 0o644);
    folder.write("lists/abuse.txt", "# nobody yet\n", 0o644);
    let (config, warnings) = load(&path).unwrap_or_else(|problems| panic!("{problems}"));
    let warnings = without_unchecked(&warnings);
    // No pool uses the commented-out checks.
    assert!(
        warnings.iter().all(|warning| warning.message.starts_with("check ")
            && warning.message.ends_with("is not used by any pool")),
        "{warnings}"
    );
    assert!(config.admin().tcp.is_some() && config.sources().len() == 4);
    let mut there = std::collections::BTreeSet::new();
    let mut asked = toml::Value::Table(whole.parse().unwrap());
    ask(&mut asked, "", &mut there);
    folder.write("a.toml", asked.as_table().unwrap().to_string(), 0o644);
    let mut keys = std::collections::BTreeSet::new();
    for problem in &load(&path).unwrap_err() {
        let Some(known) = known_keys(problem) else { continue };
        let section = problem.field.strip_suffix(UNKNOWN).unwrap_or_else(|| panic!("{problem}"));
        keys.extend(known.into_iter().map(|key| kind(&format!("{section}{key}"))));
    }
    let absent: Vec<&String> = keys.difference(&there).collect();
    assert_eq!(absent, [""; 0]);
    assert!(keys.len() > 90, "{}: {keys:?}", keys.len());
}

/// A key that is not similar to any known key, so that the help line lists the known keys.
const UNKNOWN: &str = "zzzzzzzzzzzz";

/// Adds an unknown key to every table, and records the keys in the file.
fn ask(value: &mut toml::Value, field: &str, there: &mut std::collections::BTreeSet<String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table.iter_mut() {
                let key = if field.is_empty() { key.clone() } else { format!("{field}.{key}") };
                there.insert(kind(&key));
                ask(value, &key, there);
            }
            table.insert(UNKNOWN.to_owned(), 1.into());
        }
        toml::Value::Array(list) => list.iter_mut().for_each(|value| ask(value, field, there)),
        _ => {}
    }
}

/// Returns the field without user-defined names and without indices. HTTPS checks are treated as
/// HTTP checks.
fn kind(field: &str) -> String {
    let mut parts: Vec<&str> = field.split('.').map(|part| part.split('[').next().unwrap_or(part)).collect();
    let named = ["check", "encapsulation", "machine", "pool", "prefix_group", "remote", "vip"];
    if parts.len() > 1 && named.contains(&parts[0]) {
        parts[1] = "NAME";
    }
    parts.join(".").replace(".https", ".http")
}

#[test]
fn the_example_states_the_defaults() {
    let (example, _) = parsed(EXAMPLE).unwrap();
    let bare = EXAMPLE.replace("queues = 4\n", "\n");
    let drop =
        ["schema", "level", "format", "table_size", "drain_time", "new", "established", "closing", "udp"];
    let drop = drop.iter().chain(&["via", "interval", "timeout", "fast_interval", "rise", "fall"]);
    let drop: Vec<_> = drop.chain(&["jitter_percent", "method", "status", "watch", "put"]).collect();
    let drop = drop.into_iter().chain(&[
        "mode",
        "steering",
        "next_hop",
        "flows_per_thread",
        "frames_per_queue",
        "frame_size",
    ]);
    let drop: Vec<_> = drop
        .chain(&[
            "batch",
            "no_socket",
            "max_vips",
            "limit_sources",
            "source_ports",
            "spin",
            "then",
            "udp_checksum",
        ])
        .collect();
    let drop: Vec<_> = drop.into_iter().chain(&["dont_fragment", "too_big"]).collect();
    let drop = drop.into_iter().chain(&[
        "fragments",
        "datagrams",
        "buffered",
        "per_datagram",
        "per_source",
        "lifetime",
    ]);
    let drop: Vec<_> = drop
        .chain(&["replies_per_second", "replies_per_source", "errors_per_second", "errors_per_source"])
        .collect();
    let has_default = |line: &&str| drop.iter().any(|key| line.split(' ').next() == Some(**key));
    assert_eq!(bare.lines().filter(has_default).count(), drop.len(), "a default occurs twice");
    let bare: Vec<&str> = bare.lines().filter(|line| !has_default(line)).collect();
    let (bare, _) = parsed(&bare.join("\n")).unwrap();
    assert_eq!(bare.cluster(), example.cluster());
    assert_eq!(bare.pools(), example.pools());
    assert_eq!(bare.log(), example.log());
    assert_eq!(bare.admin(), example.admin());
    assert_eq!(example.io().queues, Some(4));
    assert_eq!(bare.io(), &Io::default());
    let (frames, fragments) = (example.io().frames_per_queue, example.io().fragments);
    assert_eq!(fragments.buffered(frames), Io::default().fragments.buffered(frames));
    // The default of `buffered` depends on another key.
    let resolved = EXAMPLE.replace("queues = 4\n", "\n").replace("buffered = 1_024\n", "\n");
    assert_eq!(parsed(&resolved).unwrap().0.io(), &Io::default());
}

#[test]
fn defaults_have_the_documented_values() {
    let (config, _) = parsed(&with_pools("")).unwrap();
    let cluster = config.cluster();
    assert_eq!((cluster.table_size, cluster.drain_time), (65_537, Duration::from_secs(60)));
    assert_eq!((cluster.watch, cluster.max_moved), (false, None));
    let flow = cluster.flow_timeouts;
    let seconds = [flow.new, flow.established, flow.closing, flow.udp].map(|d| d.as_secs());
    assert_eq!(seconds, [10, 900, 10, 60]);
    let io = config.io();
    assert_eq!((io.mode, io.steering, io.next_hop), (IoMode::AfXdp, Steering::Hardware, NextHop::Resolve));
    assert_eq!((io.threads, io.busy_poll), (None, None));
    assert_eq!((io.flows_per_thread, io.frames_per_queue, io.batch), (1_000_000, 4_096, 64));
    assert_eq!((io.queues, io.no_socket, io.max_vips), (None, NoSocket::Pass, 4_096));
    assert_eq!((io.limit_sources, io.frame_size), (65_536, 2_048));
    assert_eq!(io.source_ports, 61_000..=61_255);
    assert_eq!((io.idle.spin, io.idle.then), (Duration::from_millis(1), IdleThen::Sleep));
    assert_eq!((config.log().level, config.log().format), (LogLevel::Info, LogFormat::Human));
}

#[test]
fn values_that_are_not_defaults_arrive() {
    let text = with_pools(
        "[pool.a]\nencapsulation = \"x\"\nbackends = [{ name = \"b\", address = \"198.18.0.1\", weight = 65535 }]\n\
         [encapsulation.x]\nkind = \"gue\"\nudp_checksum = true\ndont_fragment = false\n\
         [encapsulation.l2]\nkind = \"l2\"\n[pool.b]\nencapsulation = \"l2\"\n\
         backends = [{ name = \"b\", address = \"198.18.0.1\", weight = 2 }]\n\
         [io]\nmode = \"af-packet\"\nnext_hop = \"reflect\"\nframe_size = 4_096\nbatch = 256\nidle = { spin = \"1s\", then = \"spin\" }\nno_socket = \"drop\"\n\
         [vip.v]\naddresses = [\"203.0.113.1\"]\nservices = [\
         { protocol = \"tcp\", ports = \"any\", pool = \"a\" },\
         { protocol = 6, ports = [\"90-99\", 80, \"1-1\"], pool = \"b\", hash = \"source\" },\
         { protocol = \"gre\", pool = \"a\" }, { protocol = 50, ports = \"any\", pool = \"a\" },\
         { protocol = 132, ports = [3868], pool = \"a\" }, { protocol = \"sctp\", ports = \"any\", pool = \"b\" },\
         { protocol = \"udp-lite\", ports = [3868], pool = \"a\", hash = \"addresses\" }]\n\
         [log]\nlevel = \"trace\"\nformat = \"json\"",
    );
    let (config, warnings) = parsed(&text).unwrap();
    assert_eq!(warnings.to_string(), "");
    let member = &config.pools()[0].members[0];
    assert_eq!(member.weight, 65_535);
    assert_eq!(member.encapsulation.kind, packet::Encapsulation::Gue { udp_checksum: true });
    assert!(!member.encapsulation.dont_fragment);
    assert_eq!(config.pools()[1].members[0].encapsulation.kind, packet::Encapsulation::L2);
    let io = config.io();
    assert_eq!((io.mode, io.next_hop), (IoMode::AfPacket, NextHop::Reflect));
    assert_eq!((io.batch, io.no_socket), (256, NoSocket::Drop));
    assert_eq!((io.idle.spin, io.idle.then), (Duration::from_secs(1), IdleThen::Spin));
    let services: Vec<_> =
        config.vips()[0].services.iter().map(|s| (s.protocol, s.ports.clone(), s.hash)).collect();
    let listed = Ports::Listed(vec![1..=1, 80..=80, 90..=99]);
    let diameter = Ports::Listed(vec![3868..=3868]);
    assert_eq!(
        services,
        [
            (Protocol::Tcp, Ports::Any, HashPolicy::FiveTuple),
            (Protocol::Tcp, listed, HashPolicy::Source),
            (Protocol::Number(47), Ports::Any, HashPolicy::FiveTuple),
            (Protocol::Number(50), Ports::Any, HashPolicy::FiveTuple),
            (Protocol::Sctp, diameter.clone(), HashPolicy::FiveTuple),
            (Protocol::Sctp, Ports::Any, HashPolicy::FiveTuple),
            (Protocol::UdpLite, diameter, HashPolicy::Addresses),
        ]
    );
    assert_eq!((config.log().level, config.log().format), (LogLevel::Trace, LogFormat::Json));
}

#[test]
fn order_in_the_file_does_not_matter() {
    let sections: Vec<String> = EXAMPLE.split("\n[").skip(1).map(|s| format!("[{s}\n")).collect();
    let reversed: String = sections.iter().rev().cloned().collect();
    assert_eq!(parsed(&sections.concat()).unwrap(), parsed(&reversed).unwrap());
}
