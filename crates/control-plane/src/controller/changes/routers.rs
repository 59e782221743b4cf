//! What is different about routers and what is announced to them.
//!
//! In: configurations, VIPs. Out: sentences. Not here: routes that move because addresses do (`changes` says the addresses).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::Changes;
use super::keys::{Difference, Keys};
use config::{Bgp, BgpPeer, Config, Vip, format_duration};

/// Of one machine: itself and its peers.
pub(super) fn bgp(changes: &mut Changes, old: &Config, new: &Config, machine: &str) {
    let of = |config: &Config| config.bgp().filter(|bgp| bgp.peers_of(machine).next().is_some()).cloned();
    let id = |config: &Config| config.machine(machine).and_then(|machine| machine.router_id());
    match (of(old), of(new)) {
        (None, None) => {}
        (None, Some(new)) => changes.say(format!("bgp: AS {}: VIPs are announced from now on", new.asn)),
        (Some(_), None) => changes.say("bgp: gone: all sessions end, and nothing is announced"),
        (Some(before), Some(after)) => {
            for difference in section(&before, id(old)).differing(&section(&after, id(new))) {
                let waits = AT_START.contains(&&*difference.key);
                let when = if waits { " (takes effect at the next start)" } else { "" };
                changes.say(format!("{}{when}", difference.sentence()));
            }
            peers(changes, &before, &after, machine);
        }
    }
}

/// Of one VIP.
pub(super) fn announce(changes: &mut Changes, old: &Vip, new: &Vip) {
    let name = &old.name;
    match (old.announce.as_ref(), new.announce.as_ref()) {
        (None, None) => {}
        (None, Some(_)) => changes.say(format!("vip {name}: announced from now on")),
        (Some(_), None) => changes.say(format!("vip {name}: no longer announced")),
        (Some(before), Some(after)) => {
            for difference in Keys::of("", before).differing(&Keys::of("", after)) {
                changes.say(format!("vip {name}: announce.{}", difference.sentence()));
            }
        }
    }
}

/// A peer is known by its address, as the speaker has it.
fn peers(changes: &mut Changes, old: &Bgp, new: &Bgp, machine: &str) {
    fn of<'a>(bgp: &'a Bgp, machine: &str) -> BTreeMap<IpAddr, &'a BgpPeer> {
        bgp.peers_of(machine).map(|peer| (peer.address, peer)).collect()
    }
    let notice = new.graceful_shutdown;
    let (old, new) = (of(old, machine), of(new, machine));
    for (address, peer) in &old {
        let Some(next) = new.get(address) else {
            changes.say(format!("bgp peer {}: removed: its session with {address} ends after {}, in which its routes are marked as about to go", peer.name, format_duration(notice)));
            continue;
        };
        let words = peer_words(peer, next, notice);
        if !words.is_empty() {
            changes.say(format!("bgp peer {}: {}", next.name, words.join(", ")));
        }
    }
    for (address, peer) in new.iter().filter(|(address, _)| !old.contains_key(*address)) {
        changes.say(format!("bgp peer {}: added, {address} of AS {}", peer.name, peer.asn));
    }
}

/// What is different of a peer, and what its session makes of it, as the speaker has it.
fn peer_words(peer: &BgpPeer, next: &BgpPeer, notice: Duration) -> Vec<String> {
    let differing = Keys::of("", peer).differing(&Keys::of("", next));
    let mut words: Vec<String> = Vec::new();
    if peer.name != next.name {
        words.push(format!("called {} before", peer.name));
    }
    words.extend(differing.iter().map(Difference::short));
    if peer.md5.as_ref() != next.md5.as_ref() {
        words.push(
            "another key in the running session: the router must have it too within the hold time".to_owned(),
        );
    }
    let restarts: Vec<&str> = differing
        .iter()
        .map(|difference| difference.key.as_str())
        .filter(|key| RESTARTING.contains(key))
        .collect();
    if !restarts.is_empty() {
        let notice = format_duration(notice);
        // Only the connection knows which address it is from.
        let unless = if restarts == ["source"] { ", unless it comes from there already" } else { "" };
        words.push(format!(
            "its session restarts after {notice}, in which its routes are marked as about to go{unless}"
        ));
    } else if differing.iter().any(|difference| difference.key == "hold_time") {
        words.push("hold_time counts from the next session on".to_owned());
    }
    if restarts.is_empty() && peer.bfd.is_some() && next.bfd.is_none() {
        words.push("BFD ends with the session of now".to_owned());
    }
    words
}

/// Keys that the speaker takes as it starts.
const AT_START: [&str; 2] = ["bgp.asn", "router_id"];

/// Keys that an OPEN carries, or that make another connection.
const RESTARTING: [&str; 4] = ["asn", "source", "families", "extended_next_hop"];

/// Of the section, with the number that a machine goes by in it.
fn section(bgp: &Bgp, router_id: Option<Ipv4Addr>) -> Keys {
    let mut keys = Keys::of("bgp", bgp);
    keys.join(Keys::of("router_id", &router_id));
    keys
}
