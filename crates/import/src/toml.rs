//! Writes the TOML text. Sections for which IPVS rules contain no data get placeholders.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Note;
use crate::translate::{Encapsulation, Entry, Pool, Translation, Vip};

/// Writes the whole configuration.
pub(crate) fn write(translation: &Translation) -> String {
    let mut text = String::from(HEAD);
    // Writing to a string cannot fail.
    let _ = write_all(&mut text, translation);
    text
}

fn write_all(text: &mut String, all: &Translation) -> fmt::Result {
    writeln!(text, "[cluster]\nname = \"imported\"\nhash_key_file = \"hash.key\"")?;
    let most = all.pools.iter().map(|pool| pool.size).max().unwrap_or(0);
    if let Some(slots) =
        TABLE_SIZES.into_iter().find(|slots| slots / 100 >= most).filter(|slots| *slots != TABLE_SIZES[0])
    {
        writeln!(text, "table_size = {slots}")?;
    }
    let addresses = machine_addresses(all).into_iter().map(|address| format!("\"{address}\""));
    let addresses = addresses.collect::<Vec<_>>().join(", ");
    writeln!(text, "\n[machine.lb1]\naddresses = [{addresses}]\ninterfaces = [\"eth0\"]")?;
    if all.vips.len() > USUAL_VIPS {
        writeln!(text, "\n[io]\nmax_vips = {}", all.vips.len())?;
    }
    if all.pools.iter().any(|pool| !pool.backends.is_empty() && pool.encapsulation == Encapsulation::Checksum)
    {
        let name = Encapsulation::Checksum.word();
        writeln!(text, "\n[encapsulation.{name}]\nkind = \"gue\"\nudp_checksum = true")?;
    }
    // With every supported forwarding method, the servers receive packets to the VIP and must
    // listen on the VIP.
    for port in all.pools.iter().filter_map(|pool| pool.check).collect::<BTreeSet<_>>() {
        writeln!(text, "\n[check.tcp-{port}]\ntcp = {{ port = {port} }}\nvia = \"vip\"")?;
    }
    all.pools.iter().try_for_each(|pool| write_pool(text, pool))?;
    all.vips.iter().try_for_each(|vip| write_vip(text, vip))?;
    if !all.left_out.is_empty() {
        writeln!(text, "\n# Left out:")?;
    }
    all.left_out.iter().try_for_each(|note| write_note(text, "", note))
}

fn write_pool(text: &mut String, pool: &Pool) -> fmt::Result {
    writeln!(text, "\n[pool.{}]", pool.name)?;
    if let Some(port) = pool.check {
        writeln!(text, "checks = [\"tcp-{port}\"]")?;
    }
    if let Some(fallback) = &pool.fallback {
        writeln!(text, "fallback = {{ pool = \"{fallback}\" }}")?;
    }
    if !pool.pools.is_empty() {
        let pools = pool.pools.iter().map(|name| format!("{{ pool = \"{name}\" }}"));
        return list(text, "pools", pools.collect());
    }
    writeln!(text, "encapsulation = \"{}\"", pool.encapsulation.word())?;
    let backends = pool.backends.iter().map(|backend| {
        let weight =
            if backend.weight == 1 { String::new() } else { format!(", weight = {}", backend.weight) };
        format!("{{ name = \"{}\", address = \"{}\"{weight} }}", backend.name(), backend.address)
    });
    list(text, "backends", backends.collect())
}

/// Writes a list. A single element is written on the line of the key, and several elements are
/// written on separate lines.
fn list(text: &mut String, key: &str, elements: Vec<String>) -> fmt::Result {
    match &elements[..] {
        [one] => writeln!(text, "{key} = [{one}]"),
        all => writeln!(text, "{key} = [\n    {},\n]", all.join(",\n    ")),
    }
}

fn write_vip(text: &mut String, vip: &Vip) -> fmt::Result {
    writeln!(text, "\n[vip.{}]\naddresses = [\"{}\"]\nservices = [", vip.name, vip.address)?;
    for entry in &vip.services {
        entry.notes.iter().try_for_each(|note| write_note(text, "    ", note))?;
        let Entry { protocol, port, pool, by_source, .. } = entry;
        let ports = if *port == 0 { "\"any\"".to_owned() } else { format!("[{port}]") };
        let hash = if *by_source { ", hash = \"source\"" } else { "" };
        writeln!(
            text,
            "    {{ ports = {ports}, protocol = \"{}\", pool = \"{pool}\"{hash} }},",
            protocol.word()
        )?;
    }
    writeln!(text, "]")
}

fn write_note(text: &mut String, margin: &str, note: &Note) -> fmt::Result {
    let left_out = if note.is_left_out { "left out: " } else { "" };
    writeln!(text, "{margin}# line {}: {left_out}{}", note.line, note.words)
}

/// Returns placeholder addresses for the machine. For each address family of the outer headers,
/// this is the first documentation address that no rule uses.
fn machine_addresses(all: &Translation) -> Vec<IpAddr> {
    let backends = || all.pools.iter().flat_map(|pool| &pool.backends);
    let vips = all.vips.iter().map(|vip| vip.address);
    let taken: BTreeSet<IpAddr> = backends().map(|backend| backend.address).chain(vips).collect();
    let is_free = |address: &IpAddr| !taken.contains(address);
    let v4 = (1..=u32::MAX)
        .map(|more| IpAddr::from(Ipv4Addr::from(FIRST_V4.to_bits().wrapping_add(more))))
        .find(is_free);
    let v6 = (1..=u128::MAX)
        .map(|more| IpAddr::from(Ipv6Addr::from(FIRST_V6.to_bits().wrapping_add(more))))
        .find(is_free);
    let v6 = v6.filter(|_| backends().any(|backend| backend.address.is_ipv6()));
    v4.into_iter().chain(v6).collect()
}

const FIRST_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 0);
const FIRST_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0);
/// The available table sizes, all of which are primes. The first size is the default.
const TABLE_SIZES: [usize; 3] = [65_537, 655_373, 16_777_213];
/// The default of `io.max_vips`.
const USUAL_VIPS: usize = 4_096;
const HEAD: &str = "\
# Generated from IPVS rules by `sluicegate config import ipvs`. Line numbers in comments refer to these rules.
# IPVS rules do not name the cluster and its machines: replace both placeholders.
# Create the hash key: umask 077; openssl rand -hex 16 > hash.key
# Add health checks for services without a TCP port, and BGP routers: see docs/how-to/migrate.md.
";
