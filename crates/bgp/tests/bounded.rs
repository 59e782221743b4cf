//! Measures how much memory is allocated while and after a peer sends 100,000 routes.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

#[path = "speaker/hand.rs"]
#[expect(dead_code, reason = "the speaker tests use the other items")]
mod hand;

use std::net::Ipv4Addr;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use hand::*;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

// Promise: bgp-import
#[tokio::test]
async fn a_hundred_thousand_routes_leave_nothing_behind() {
    let (listener, at) = listen(50).await;
    let speaker = speaker(vec![peer("router", at)]);
    let mut router = Router::accept(&listener).await;
    router.shake_hands(Ipv4Addr::new(192, 0, 2, 200), 0).await;
    established(&speaker, "router").await;
    let flood = flood(100_000);
    let region = Region::new(ALLOCATOR);
    for round in 1..=3 {
        router.send(&flood).await;
        until(&speaker, "router", |router| router.counts.ignored_prefixes == round * 100_000).await;
        let change = region.change();
        let kept = change.bytes_allocated.saturating_sub(change.bytes_deallocated);
        println!("after {round} floods: {kept} bytes kept");
        assert!(kept < 256 << 10, "{kept} bytes stay allocated after a flood");
    }
}
