//! Describes changes to BGP peers and announcements. Changes to VIP addresses also change routes,
//! and `changes` describes them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::Changes;
use super::keys::{Difference, Keys};
use config::{Bgp, BgpPeer, Config, Vip, format_duration};

/// Reports changes to the `[bgp]` section and to the peers of one machine.
pub(super) fn bgp(changes: &mut Changes, old: &Config, new: &Config, machine: &str) {
    let of = |config: &Config| config.bgp().filter(|bgp| bgp.peers_of(machine).next().is_some()).cloned();
    let id = |config: &Config| config.machine(machine).and_then(|machine| machine.router_id());
    match (of(old), of(new)) {
        (None, None) => {}
        (None, Some(new)) => {
            changes.say(format!("bgp: added with AS {}; VIPs are announced from now on", new.asn))
        }
        (Some(_), None) => changes.say("bgp: removed; all sessions end and no VIP is announced"),
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

/// Reports changes to the `announce` key of one VIP.
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

/// Compares the peers by address, because the BGP speaker identifies them by address.
fn peers(changes: &mut Changes, old: &Bgp, new: &Bgp, machine: &str) {
    fn of<'a>(bgp: &'a Bgp, machine: &str) -> BTreeMap<IpAddr, &'a BgpPeer> {
        bgp.peers_of(machine).map(|peer| (peer.address, peer)).collect()
    }
    let notice = new.graceful_shutdown;
    let (old, new) = (of(old, machine), of(new, machine));
    for (address, peer) in &old {
        let Some(next) = new.get(address) else {
            changes.say(format!("bgp peer {}: removed; its session with {address} ends after {}, and until then its routes carry the graceful-shutdown community", peer.name, format_duration(notice)));
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

/// Describes how a peer changed, and the effect on its session.
fn peer_words(peer: &BgpPeer, next: &BgpPeer, notice: Duration) -> Vec<String> {
    let differing = Keys::of("", peer).differing(&Keys::of("", next));
    let mut words: Vec<String> = Vec::new();
    if peer.name != next.name {
        words.push(format!("renamed from {}", peer.name));
    }
    words.extend(differing.iter().map(Difference::short));
    if peer.md5.as_ref() != next.md5.as_ref() {
        words.push("MD5 key changed, and the router needs the new key within the hold time".to_owned());
    }
    let restarts: Vec<&str> = differing
        .iter()
        .map(|difference| difference.key.as_str())
        .filter(|key| RESTARTING.contains(key))
        .collect();
    if !restarts.is_empty() {
        let notice = format_duration(notice);
        // This function does not know which source address the connection uses.
        let unless = if restarts == ["source"] { ", unless it already uses this source" } else { "" };
        words.push(format!(
            "its session restarts after {notice}, and until then its routes carry the graceful-shutdown community{unless}"
        ));
    } else if differing.iter().any(|difference| difference.key == "hold_time") {
        words.push("hold_time applies from the next session on".to_owned());
    }
    if restarts.is_empty() && peer.bfd.is_some() && next.bfd.is_none() {
        words.push("BFD ends with the current session".to_owned());
    }
    words
}

/// The keys that the BGP speaker reads only when it starts.
const AT_START: [&str; 2] = ["bgp.asn", "router_id"];

/// The keys whose change requires a new session, because they are part of the OPEN message or the
/// TCP connection.
const RESTARTING: [&str; 4] = ["asn", "source", "families", "extended_next_hop"];

/// Returns the keys of the `[bgp]` section, and the router ID of the machine.
fn section(bgp: &Bgp, router_id: Option<Ipv4Addr>) -> Keys {
    let mut keys = Keys::of("bgp", bgp);
    keys.join(Keys::of("router_id", &router_id));
    keys
}
