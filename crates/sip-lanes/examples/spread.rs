//! Assigns eight sessions to shards, with a key that clients do not know.
#![forbid(unsafe_code)]

use std::env::args;

use sip_lanes::{LANES, LaneHashers, SipKey};

fn main() {
    let shards: u64 =
        args().nth(1).and_then(|count| count.parse().ok()).filter(|count| *count > 0).unwrap_or(4);
    let sessions: [u64; LANES] = std::array::from_fn(|n| 1_000 + n as u64);
    let tenants = [42; LANES];
    let mut hashes = [[0; LANES]];
    (LaneHashers::PORTABLE.two)(SipKey::new(b"sixteen bytes .."), &[[sessions, tenants]], &mut hashes);
    for (session, hash) in sessions.iter().zip(hashes[0]) {
        println!("session {session}: shard {}", hash % shards);
    }
}
