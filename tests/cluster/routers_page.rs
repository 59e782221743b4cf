//! Tests the router configurations in `docs/how-to/connect-routers.md`. Each router daemon and both
//! machines run with the code blocks of the page. The router must get routes to both machines, and
//! clients must get responses.

use testbed::{Bed, FRR_BFDD, LbConfig, Router, RouterKind};

use crate::scene::{Scene, config};

const PAGE: &str = include_str!("../../docs/how-to/connect-routers.md");

/// Returns the first code block of the page that has this language.
fn block(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("\n```{language}\n")).unwrap();
    rest.split("```").next().unwrap()
}

/// Returns the testbed configuration with the machine settings of the page. Lines of the page that
/// start with `leave_out` are removed.
fn machines(bed: &Bed, leave_out: &str) -> LbConfig {
    let before = config(bed);
    let (checks, _) = before.more.split_once("[bgp]").unwrap();
    let lines = block("toml").lines().filter(|line| !line.starts_with(leave_out));
    LbConfig { more: lines.fold(checks.to_owned(), |text, line| text + line + "\n"), ..before }
}

fn brings_traffic_to_both(scene: &Scene) {
    scene.wait_for_next_hops(2);
    for index in [0, 1] {
        scene.say(index, &["bgp", "status"]);
    }
    for ipv4 in [true, false] {
        let vip = scene.bed.vip(ipv4, Bed::HTTP_PORT);
        let replies = scene.bed.http_client().get_many(vip, "/", 16, 8);
        assert!(replies.iter().all(|reply| matches!(reply, Ok(reply) if reply.status == 200)), "{replies:?}");
    }
}

// Promise: documented-start
#[test]
fn bird_has_routes_to_both_machines_by_the_page() {
    let router = |bed: &Bed| Router::start_with(bed, RouterKind::Bird, block("bird")).unwrap();
    brings_traffic_to_both(&Scene::with(router, |bed| machines(bed, "none")));
}

// Promise: documented-start
#[test]
fn frr_has_routes_to_both_machines_by_the_page() {
    // The testbed passes these lines to bfdd in a separate file.
    let bgpd = block("frr").strip_prefix(FRR_BFDD).unwrap();
    let router = |bed: &Bed| Router::start_with(bed, RouterKind::Frr, bgpd).unwrap();
    brings_traffic_to_both(&Scene::with(router, |bed| machines(bed, "none")));
}

#[test]
fn gobgpd_has_routes_to_both_machines_by_the_page() {
    let router = |bed: &Bed| Router::start_with(bed, RouterKind::Gobgp, block("gobgp")).unwrap();
    let scene = Scene::with(router, |bed| machines(bed, "bfd = "));
    let has =
        |text: &str| ["203.0.113.10/32", "192.0.2.1", "192.0.2.3"].iter().all(|word| text.contains(word));
    scene.router.until("global rib -a ipv4", has).unwrap();
}
