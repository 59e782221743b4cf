//! Formats the results of the demo as text and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::demo_stats::{Blast, Counts, Family, Figures, Share};

/// Formats the report as text.
pub(crate) fn words(figures: &Figures) -> String {
    let mut text: String = figures.families.iter().map(family_words).collect();
    text += "\nshares\n";
    text.extend(figures.shares.iter().map(share_words));
    if let Some(packet) = &figures.packet {
        let _ = write!(text, "\na packet from the balancer to a backend\n  {}\n", packet.words.join("\n  "));
        text.extend(packet.hex.lines().flat_map(|line| ["    ", line, "\n"]));
    }
    text += &blast_words(&figures.blast);
    let modes: Vec<String> = figures.modes.iter().map(|(name, mode)| format!("{name} {mode}")).collect();
    let _ = writeln!(text, "sockets: {}; packet threads: {}", modes.join(", "), figures.threads);
    let drops: Vec<String> =
        figures.drops.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    let _ = writeln!(text, "drops: {}", if drops.is_empty() { "none".into() } else { drops.join(", ") });
    let _ = writeln!(text, "\npacket counts of the requests\n{}", counted(&figures.requests));
    let _ = writeln!(text, "packet counts of the burst\n{}", counted(&figures.blast.counts));
    if let Some((asked, answered)) = figures.after_stop {
        let _ = writeln!(text, "balancer stopped: {answered} of {asked} requests answered");
    }
    let _ = writeln!(text, "{:.1} s in total", figures.seconds);
    text
}

fn family_words(family: &Family) -> String {
    let Family {
        vip,
        asked,
        answered,
        own_address_seen,
        reply_packets,
        reply_packets_from_vip,
        median_us,
        ..
    } = family;
    format!(
        "{vip}: {answered} of {asked} requests answered, median {median_us} us; {own_address_seen} backends saw \
         the client's own address; {reply_packets_from_vip} of {reply_packets} reply packets come from the VIP\n"
    )
}

fn share_words(share: &Share) -> String {
    let Share { backend, weight, requests, of_requests, .. } = share;
    let (expected, tolerance) = (share.expected(), share.tolerance());
    format!(
        "  {backend}: {requests} of {of_requests} requests; weight {weight}, expected {expected:.0} +- {tolerance:.0}\n"
    )
}

fn blast_words(Blast { seconds, offered, counts }: &Blast) -> String {
    let rate = |packets: u64| rate(packets, *seconds);
    format!(
        "\nburst of {seconds:.1} s: {} packets/s offered, {} received, {} sent, {} decapsulated\n",
        rate(*offered),
        rate(counts.received),
        rate(counts.sent),
        rate(counts.taken_off)
    )
}

/// Formats the report as JSON. The field names are stable.
pub(crate) fn json(figures: &Figures) -> Value {
    let family = |f: &Family| {
        json!({
            "vip": f.vip, "asked": f.asked, "answered": f.answered, "own_address_seen": f.own_address_seen,
            "reply_packets": f.reply_packets, "reply_packets_from_vip": f.reply_packets_from_vip,
            "median_us": u64::try_from(f.median_us).unwrap_or(u64::MAX), "failures": f.failures,
        })
    };
    let share = |s: &Share| {
        json!({
            "backend": s.backend, "weight": s.weight, "requests": s.requests,
            "expected": s.expected(), "tolerance": s.tolerance(),
        })
    };
    let named = |pairs: &[(String, u64)]| pairs.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
    let Blast { seconds, offered, counts } = &figures.blast;
    json!({
        "families": figures.families.iter().map(family).collect::<Vec<_>>(),
        "shares": figures.shares.iter().map(share).collect::<Vec<_>>(),
        "packet": figures.packet.as_ref().map(|p| json!({"words": p.words, "hex": p.hex})),
        "modes": figures.modes.iter().map(|(name, mode)| (name.clone(), json!(mode))).collect::<serde_json::Map<_, _>>(),
        "threads": figures.threads,
        "drops": Value::Object(named(&figures.drops)),
        "requests": counts_json(&figures.requests),
        "blast": {
            "seconds": seconds, "offered": offered, "counts": counts_json(counts),
            "offered_per_s": rate(*offered, *seconds), "received_per_s": rate(counts.received, *seconds),
            "sent_per_s": rate(counts.sent, *seconds), "taken_off_per_s": rate(counts.taken_off, *seconds),
        },
        "after_stop": figures.after_stop.map(|(asked, answered)| json!({"asked": asked, "answered": answered})),
        "seconds": figures.seconds,
        "faults": figures.faults(),
    })
}

pub(crate) fn counted(counts: &Counts) -> String {
    let Counts { redirected, lost_before_threads, received, dropped, sent, lost_on_links, taken_off } =
        counts;
    format!(
        "  redirected by XDP {redirected} = received by threads {received} + dropped at full rings {lost_before_threads}\n  \
         received by threads {received} = sent {sent} + dropped {dropped}\n  \
         sent {sent} = decapsulated at backends {taken_off} + dropped on links {lost_on_links}\n  \
         {}",
        if counts.agree() { "all counts agree" } else { "the counts do NOT agree" }
    )
}

pub(crate) fn counts_json(counts: &Counts) -> Value {
    json!({
        "redirected": counts.redirected, "lost_before_threads": counts.lost_before_threads,
        "received": counts.received, "dropped": counts.dropped, "sent": counts.sent,
        "lost_on_links": counts.lost_on_links, "taken_off": counts.taken_off, "agree": counts.agree(),
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the counts are far below 2^52, and the rate is rounded"
)]
fn rate(packets: u64, seconds: f64) -> u64 {
    if seconds > 0.0 { (packets as f64 / seconds) as u64 } else { 0 }
}
