//! Tests the router configurations and commands in `docs/how-to/connect-routers.md`. Each router
//! daemon and both machines run with the code blocks of the page. The router must get routes to
//! both machines, and clients must get responses.

use testbed::{Bed, FRR_BFDD, LbConfig, Namespace, Process, Router, RouterKind, sections};

use crate::scene::{BOUND, Scene, config};

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

/// A shell script that mounts private versions of /etc and /run, with the admin socket `$0` and the
/// program `$1`, and then runs the commands `$2`.
const ON_A_HOST: &str = "mount -t tmpfs none /etc; mount -t tmpfs none /run; mkdir /run/sluicegate /run/bin
    ln -s \"$0\" /run/sluicegate/admin.sock; ln -s \"$1\" /run/bin/sluicegate; PATH=/run/bin:$PATH
    exec sh -eux -c \"$2\"";

/// Runs the commands below a heading of the page on a host. The admin socket is that of the machine
/// `index`.
fn run(scene: &Scene, heading: &str, host: &Namespace, index: usize) {
    let section = sections(PAGE).into_iter().find(|section| section.heading == heading).unwrap();
    let socket = LbConfig::admin_socket(&scene.bed, index);
    let program = scene.bed.program().unwrap();
    let (socket, program) = (socket.to_str().unwrap(), program.to_str().unwrap());
    let args = ["--mount", "sh", "-euc", ON_A_HOST, socket, program, &section.commands];
    let ended = Process::to_end(host, "unshare", &args, BOUND).unwrap();
    println!("{heading}\n{}{}", ended.err, ended.out);
    assert_eq!(ended.code, Some(0), "{heading}: {}", ended.err);
}

fn brings_traffic_to_both(scene: &Scene) {
    scene.wait_for_next_hops(2);
    run(scene, "Step 2: configure the router", &scene.bed.router, 0);
    for index in [0, 1] {
        let host = &scene.bed.balancers[index].ns;
        run(scene, "Store the MD5 key", host, index);
        run(scene, "Step 3: check the sessions", host, index);
    }
    serves(scene, &[true, false]);
}

fn serves(scene: &Scene, families: &[bool]) {
    for &ipv4 in families {
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
    // GoBGP does not change routes of the kernel, so the static route of the page takes effect.
    run(&scene, "Static routes instead of BGP", &scene.bed.router, 0);
    serves(&scene, &[true]);
}

#[test]
fn page_has_no_other_commands() {
    let headings: Vec<String> = sections(PAGE).into_iter().map(|section| section.heading).collect();
    let wanted = [
        "Store the MD5 key",
        "Step 2: configure the router",
        "Step 3: check the sessions",
        "Static routes instead of BGP",
    ];
    assert_eq!(headings, wanted, "the tests must run each section");
}
