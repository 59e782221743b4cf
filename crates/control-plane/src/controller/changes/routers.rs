//! What is different about routers and what they are told.
//!
//! In: configurations, VIPs. Out: sentences. Not here: routes that move because addresses do (`changes` says the addresses).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use bgp::Family;

use super::Changes;
use super::keys::{Difference, Keys};
use config::{Announce, Bgp, BgpPeer, Config, Vip, format_duration};

/// Of one machine: itself and its peers.
pub(super) fn bgp(changes: &mut Changes, old: &Config, new: &Config, machine: &str) {
    let of = |config: &Config| config.bgp().filter(|bgp| bgp.peers_of(machine).next().is_some()).cloned();
    let id = |config: &Config| config.machine(machine).and_then(|machine| machine.router_id());
    match (of(old), of(new)) {
        (None, None) => {}
        (None, Some(new)) => changes.say(format!("bgp: AS {}: VIPs are announced from now on", new.asn())),
        (Some(_), None) => changes.say("bgp: gone: all sessions end, and nothing is announced"),
        (Some(before), Some(after)) => {
            for difference in fixed(&before, id(old)).differing(&fixed(&after, id(new))) {
                changes.say(format!("{} (takes effect at the next start)", difference.sentence()));
            }
            for difference in listen(&before).differing(&listen(&after)) {
                changes.say(difference.sentence());
            }
            for difference in times(&before).differing(&times(&after)) {
                changes.say(difference.sentence());
            }
            peers(changes, &before, &after, machine);
        }
    }
}

/// Of one VIP.
pub(super) fn announce(changes: &mut Changes, old: &Vip, new: &Vip) {
    let name = old.name();
    match (old.announce(), new.announce()) {
        (None, None) => {}
        (None, Some(_)) => changes.say(format!("vip {name}: announced from now on")),
        (Some(_), None) => changes.say(format!("vip {name}: no longer announced")),
        (Some(before), Some(after)) => {
            for difference in said(before).differing(&said(after)) {
                changes.say(format!("vip {name}: announce.{}", difference.sentence()));
            }
        }
    }
}

/// A peer is known by its address, as the speaker has it.
fn peers(changes: &mut Changes, old: &Bgp, new: &Bgp, machine: &str) {
    fn of<'a>(bgp: &'a Bgp, machine: &str) -> BTreeMap<IpAddr, &'a BgpPeer> {
        bgp.peers_of(machine).map(|peer| (peer.address(), peer)).collect()
    }
    let notice = new.graceful_shutdown();
    let (old, new) = (of(old, machine), of(new, machine));
    for (address, peer) in &old {
        let Some(next) = new.get(address) else {
            changes.say(format!("bgp peer {}: removed: its session with {address} ends after {}, in which its routes are marked as about to go", peer.name(), format_duration(notice)));
            continue;
        };
        let words = peer_words(peer, next, notice);
        if !words.is_empty() {
            changes.say(format!("bgp peer {}: {}", next.name(), words.join(", ")));
        }
    }
    for (address, peer) in new.iter().filter(|(address, _)| !old.contains_key(*address)) {
        changes.say(format!("bgp peer {}: added, {address} of AS {}", peer.name(), peer.asn()));
    }
}

/// What is different of a peer, and what its session makes of it, as the speaker has it.
fn peer_words(peer: &BgpPeer, next: &BgpPeer, notice: Duration) -> Vec<String> {
    let differing = session(peer).differing(&session(next));
    let mut words: Vec<String> = Vec::new();
    if peer.name() != next.name() {
        words.push(format!("called {} before", peer.name()));
    }
    words.extend(differing.iter().map(Difference::short));
    if peer.md5() != next.md5() {
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
    if restarts.is_empty() && peer.bfd().is_some() && next.bfd().is_none() {
        words.push("BFD ends with the session of now".to_owned());
    }
    words
}

/// Keys that an OPEN tells of, or that make another connection.
const RESTARTING: [&str; 4] = ["asn", "source", "families", "extended_next_hop"];

fn fixed(bgp: &Bgp, router_id: Option<std::net::Ipv4Addr>) -> Keys {
    let mut keys = Keys::default();
    keys.set("bgp.asn", bgp.asn());
    keys.set("router_id", router_id.map_or_else(|| "none".to_owned(), |id| id.to_string()));
    keys
}

fn listen(bgp: &Bgp) -> Keys {
    let mut keys = Keys::default();
    keys.set("bgp.listen", list(bgp.listen()));
    keys
}

fn times(bgp: &Bgp) -> Keys {
    let mut keys = Keys::default();
    keys.time("bgp.graceful_shutdown", bgp.graceful_shutdown());
    keys.time("bgp.hold_down", bgp.hold_down());
    keys.time("bgp.longest_hold_down", bgp.longest_hold_down());
    keys.set("bgp.anchor_med", bgp.anchor_med());
    keys
}

fn session(peer: &BgpPeer) -> Keys {
    let mut keys = Keys::default();
    keys.set("asn", peer.asn());
    keys.set("port", peer.port());
    some(&mut keys, "hops", peer.hops());
    keys.set("passive", peer.passive());
    some(&mut keys, "source", peer.source());
    keys.set("families", list(peer.families() as &[Family]));
    some(&mut keys, "next_hop4", peer.next_hops().0);
    some(&mut keys, "next_hop6", peer.next_hops().1);
    keys.set("extended_next_hop", peer.extended_next_hop());
    keys.time("hold_time", peer.hold_time());
    keys.time("longest_retry", peer.longest_retry());
    some(&mut keys, "max_prefixes", peer.max_prefixes());
    if let Some(bfd) = peer.bfd() {
        keys.time("bfd.interval", bfd.interval);
        keys.set("bfd.multiplier", bfd.multiplier);
    }
    keys
}

fn said(says: &Announce) -> Keys {
    let mut keys = Keys::default();
    keys.set("min_serving", says.min_serving());
    keys.set("return_serving", says.return_serving());
    let attributes = says.attributes();
    let communities = attributes.communities.iter().map(|one| format!("{}:{}", one.0, one.1));
    keys.set("communities", list(&communities.collect::<Vec<_>>()));
    let large = attributes.large_communities.iter().map(|one| format!("{}:{}:{}", one.0, one.1, one.2));
    keys.set("large_communities", list(&large.collect::<Vec<_>>()));
    some(&mut keys, "med", attributes.med);
    some(&mut keys, "local_pref", attributes.local_pref);
    keys.set("prepend", attributes.prepend);
    keys.set("peers", if says.peers().is_empty() { "all".to_owned() } else { list(says.peers()) });
    keys.set("anchors", list(says.anchors()));
    keys.set("aggregates", list(says.aggregates()));
    keys.set("remotes", says.remotes());
    keys
}

fn some(keys: &mut Keys, key: &str, value: Option<impl std::fmt::Display>) {
    if let Some(value) = value {
        keys.set(key, value);
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    let words: Vec<String> = items.iter().map(ToString::to_string).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(" ") }
}
