//! Checks and encapsulations: each is told once, key by key, however many backends use it; and which backends got others.
//!
//! In: two configurations. Out: sentences. Not here: what a check's keys mean (`config`).

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::Changes;
use super::keys::{Difference, Keys};
use config::words::few;
use config::{
    Check, CheckKind, Config, DnsRecord, Encapsulation, EncapsulationKind, HttpCheck, Member, Pool, Tls,
    TooBig, Via,
};

/// One line for each check and each encapsulation that is in use before and after, and says something else.
pub(super) fn definitions(changes: &mut Changes, old: &Config, new: &Config) {
    let (before, after) = (checks(old), checks(new));
    for (name, check) in &before {
        let Some(next) = after.get(name).filter(|next| *next != check) else { continue };
        // Of another kind, every key of the old one would be gone and every key of the new one have come.
        let alike = kind_word(&check.kind) == kind_word(&next.kind);
        let differences = check_keys(check, alike).differing(&check_keys(next, alike));
        changes.say(format!("check {name}: {}", listed(&differences)));
    }
    let (before, after) = (encapsulations(old), encapsulations(new));
    for (name, kind) in &before {
        let Some(next) = after.get(name).filter(|next| *next != kind) else { continue };
        let differences = encapsulation_keys(kind).differing(&encapsulation_keys(next));
        changes.say(format!("encapsulation {name}: {}", listed(&differences)));
    }
}

/// Which checks and which encapsulation the backends of a leaf pool have: a line for all that changed alike.
pub(super) fn uses(changes: &mut Changes, old: &Pool, new: &Pool) {
    for (what, names) in USES {
        let mut alike: BTreeMap<(String, String), Vec<&str>> = BTreeMap::new();
        for (before, after) in pairs(old, new) {
            let (from, to) = (names(before), names(after));
            if from != to {
                alike.entry((from, to)).or_default().push(before.backend().name());
            }
        }
        for ((from, to), backends) in alike {
            let of = if backends.len() == 1 { "backend" } else { "backends" };
            changes.say(format!("pool {}: {what} {from} -> {to} for {of} {}", old.name(), few(backends)));
        }
    }
}

/// Backends that the pool itself lists, before and after.
fn pairs<'a>(old: &'a Pool, new: &'a Pool) -> impl Iterator<Item = (&'a Member, &'a Member)> {
    let after: BTreeMap<&Arc<str>, &Member> =
        new.members().iter().map(|member| (member.backend().name(), member)).collect();
    let own = old.members().iter().filter(move |member| member.leaf() == old.name());
    own.filter_map(move |member| Some((member, *after.get(member.backend().name())?)))
}

/// A use, and its words for one backend.
type Use = (&'static str, fn(&Member) -> String);

const USES: [Use; 2] =
    [("checks", check_names), ("encapsulation", |member| member.encapsulation().name().to_string())];

fn check_names(member: &Member) -> String {
    let names: Vec<&str> = member.checks().iter().map(|check| &*check.name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn listed(differences: &[Difference]) -> String {
    differences.iter().map(Difference::short).collect::<Vec<_>>().join("; ")
}

fn checks(config: &Config) -> BTreeMap<&str, &Check> {
    config.members().flat_map(Member::checks).map(|check| (&*check.name, &**check)).collect()
}

fn encapsulations(config: &Config) -> BTreeMap<&str, &Encapsulation> {
    config.members().map(|member| (&**member.encapsulation().name(), member.encapsulation())).collect()
}

fn kind_word(kind: &CheckKind) -> &'static str {
    match kind {
        CheckKind::Tcp(_) => "tcp",
        CheckKind::Http(check) if check.tls.is_some() => "https",
        CheckKind::Http(_) => "http",
        CheckKind::Grpc(_) => "grpc",
        CheckKind::Dns(_) => "dns",
        CheckKind::Memcached(_) => "memcached",
    }
}

/// All keys of a check; those of its kind are left out when what they say is of no use.
pub(crate) fn check_keys(check: &Check, with_kind: bool) -> Keys {
    let mut keys = Keys::default();
    keys.set("kind", kind_word(&check.kind));
    if with_kind {
        kind(&mut keys, &check.kind);
    }
    keys.set(
        "via",
        match check.via {
            Via::Backend => "backend",
            Via::Vip => "vip",
        },
    );
    keys.time("interval", check.interval);
    keys.time("fast_interval", check.fast_interval);
    keys.time("timeout", check.timeout);
    keys.set("rise", check.rise);
    keys.set("fall", check.fall);
    keys.set("jitter_percent", check.jitter_percent);
    keys
}

fn kind(keys: &mut Keys, kind: &CheckKind) {
    match kind {
        CheckKind::Tcp(tcp) => keys.set("tcp.port", tcp.port),
        CheckKind::Http(check) => http(keys, check),
        CheckKind::Grpc(grpc) => {
            keys.set("grpc.port", grpc.port);
            keys.text("grpc.service", &grpc.service);
            keys.set("grpc.tls", grpc.tls.is_some());
            tls(keys, "grpc", grpc.tls.as_ref());
        }
        CheckKind::Dns(dns) => {
            keys.set("dns.port", dns.port);
            keys.text("dns.name", &dns.name);
            keys.set("dns.record", record(dns.record));
        }
        CheckKind::Memcached(memcached) => keys.set("memcached.port", memcached.port),
    }
}

fn http(keys: &mut Keys, check: &HttpCheck) {
    let word = if check.tls.is_some() { "https" } else { "http" };
    keys.set(format!("{word}.port"), check.port);
    keys.set(format!("{word}.method"), &check.method);
    keys.text(format!("{word}.path"), &check.path);
    if let Some(host) = &check.host {
        keys.text(format!("{word}.host"), host);
    }
    for (name, value) in &check.headers {
        // A header may carry a password.
        keys.content(format!("{word}.headers.{name}"), value);
    }
    keys.set(format!("{word}.status"), check.status.iter().map(range).collect::<Vec<_>>().join(","));
    if let Some(body) = &check.body_contains {
        keys.text(format!("{word}.body_contains"), body);
    }
    tls(keys, word, check.tls.as_ref());
}

fn tls(keys: &mut Keys, word: &str, tls: Option<&Tls>) {
    let Some(tls) = tls else { return };
    if let Some(name) = &tls.server_name {
        keys.text(format!("{word}.server_name"), name);
    }
    if let Some(ca) = &tls.ca {
        keys.content(format!("{word}.ca_file"), ca);
    }
    keys.set(format!("{word}.verify"), tls.verify);
}

fn range(codes: &RangeInclusive<u16>) -> String {
    let (first, last) = (codes.start(), codes.end());
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

fn record(record: DnsRecord) -> &'static str {
    match record {
        DnsRecord::A => "A",
        DnsRecord::Aaaa => "AAAA",
        DnsRecord::Txt => "TXT",
        DnsRecord::Soa => "SOA",
        DnsRecord::Ns => "NS",
    }
}

/// All keys of an encapsulation.
pub(crate) fn encapsulation_keys(encapsulation: &Encapsulation) -> Keys {
    let mut keys = Keys::default();
    keys.set(
        "kind",
        match encapsulation.kind() {
            EncapsulationKind::Gre => "gre",
            EncapsulationKind::Ipip => "ipip",
            EncapsulationKind::Gue { .. } => "gue",
            EncapsulationKind::L2 => "l2",
        },
    );
    if let EncapsulationKind::Gue { udp_checksum } = encapsulation.kind() {
        keys.set("udp_checksum", udp_checksum);
    }
    let prefixes: Vec<String> = encapsulation.source_prefixes().iter().map(ToString::to_string).collect();
    keys.set("source_prefixes", if prefixes.is_empty() { "none".to_owned() } else { prefixes.join(", ") });
    keys.set("dont_fragment", encapsulation.dont_fragment());
    keys.set(
        "too_big",
        match encapsulation.too_big() {
            TooBig::FragmentInner => "fragment-inner",
            TooBig::FragmentOuter => "fragment-outer",
            TooBig::Drop => "drop",
        },
    );
    keys
}
