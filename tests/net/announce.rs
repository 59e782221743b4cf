//! Tests of VIP announcements to BIRD: which routes the router has in each state of the balancer.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::{Bed, BedSpec, LbConfig, Router, RouterKind, eventually};

use crate::scene::{BOUND, Scene, verb};

/// BIRD in the router's namespace, configured to install no kernel routes.
pub(crate) struct Bird(pub(crate) Router);

impl Bird {
    fn start(bed: &Bed) -> Self {
        Self(Router::start_with(bed, RouterKind::Bird, BIRD).unwrap())
    }

    fn ask(&self, question: &str) -> String {
        self.0.ask(question).unwrap()
    }

    /// Repeats a query until `wanted` accepts the output, and returns the elapsed time.
    fn until(&self, scene: &Scene, question: &str, wanted: impl Fn(&str) -> bool) -> Duration {
        let start = Instant::now();
        let found = self.0.until(question, wanted);
        found.unwrap_or_else(|why| panic!("{why:#}\n{}", scene.diagnosis()));
        start.elapsed()
    }

    pub(crate) fn has(&self, scene: &Scene, count: usize) -> Duration {
        self.until(scene, "show route", |text| {
            VIPS.iter().filter(|vip| text.contains(**vip)).count() == count
        })
    }
}

const VIPS: [&str; 2] = ["203.0.113.10/32", "2001:db8:f::10/128"];

pub(crate) const BIRD: &str = "log stderr all;
router id 192.0.2.0;
protocol device { scan time 1; }
protocol direct { ipv4; ipv6; }
protocol bfd { interface \"*\" { min rx interval 1 s; min tx interval 1 s; multiplier 30; }; }
protocol bgp v4 { local 192.0.2.0 as 65000; neighbor 192.0.2.1 as 65101; password \"s3cret\"; ttl security on;
  hold time 60; error wait time 1, 2; connect delay time 1; bfd on; ipv4 { import all; export none; }; }
protocol bgp v6 { local 2001:db8:0:1::ff as 65000; neighbor 2001:db8:0:1::1 as 65101; password \"s3cret\";
  hold time 60; error wait time 1, 2; connect delay time 1; ipv6 { import all; export none; }; }
";

pub(crate) fn announced(bed: &Bed) -> LbConfig {
    let key = bed.dir().join("bgp.key");
    if !key.exists() {
        std::fs::write(&key, "s3cret\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key, mode).unwrap();
    }
    let mut config = LbConfig::new(bed);
    config.pool_keys = "checks = [\"web\"]".into();
    config.cluster = "drain_time = \"30s\"".into();
    config.vip_keys =
        "announce = { min_serving = 2, communities = [\"65101:10\"], med = 50, backups = [\"lb1\"] }".into();
    config.more = MORE.into();
    config
}

/// The session timers are long, so that no session expires if the test machine pauses for seconds.
const MORE: &str = r#"
[check.web]
http = { port = 80, path = "/" }
interval = "500ms"
fast_interval = "500ms"
timeout = "400ms"
fall = 2
rise = 1
[bgp]
asn = 65101
graceful_shutdown = "10s"
hold_down = "2s"
max_hold_down = "4s"
[[bgp.peers]]
name = "v4"
address = "192.0.2.0"
asn = 65000
families = ["ipv4"]
password_file = "bgp.key"
hops = 1
hold_time = "60s"
max_retry = "2s"
bfd = { interval = "1s", multiplier = 30 }
[[bgp.peers]]
name = "v6"
address = "2001:db8:0:1::ff"
asn = 65000
families = ["ipv6"]
password_file = "bgp.key"
hold_time = "60s"
max_retry = "2s"
"#;

pub(crate) fn scene() -> (Scene, Bird) {
    let scene = Scene::new(&BedSpec { backends: 2, ..BedSpec::default() }, announced);
    let bird = Bird::start(&scene.bed);
    (scene, bird)
}

/// Returns the exit code and the output of `bgp status`.
fn status(scene: &Scene) -> (i32, Value) {
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let ended = verb(&scene.bed, &["bgp", "status", "--json", "--socket", socket.to_str().unwrap()]);
    (ended.code.unwrap(), serde_json::from_str(&ended.out).unwrap())
}

/// Sets the link of a backend up or down.
pub(crate) fn link(scene: &Scene, backend: usize, state: &str) {
    let host = &scene.bed.backends[backend];
    scene.bed.router.ip(&format!("link set {} {state}", host.port)).unwrap();
    if state == "up" {
        let (v4, v6, port) = (host.v4, host.v6, &host.port);
        let again = format!(
            "addr replace 198.18.1.254/32 dev {port}\naddr replace 2001:db8:18::fffe/128 dev {port} nodad\n\
             route replace {v4} dev {port}\nroute replace {v6} dev {port}"
        );
        scene.bed.router.ip(&again).unwrap();
    }
}

#[test]
fn vip_is_announced_with_enough_backends() {
    let (scene, bird) = scene();
    println!("both routes at the router {:?} after the start of BIRD", bird.has(&scene, 2));
    let route = bird.ask("show route all 203.0.113.10/32");
    for word in ["BGP.med: 1050", "(65101,10)", "BGP.next_hop: 192.0.2.1", "BGP.as_path: 65101"] {
        assert!(route.contains(word), "{word} is missing in\n{route}");
    }
    bird.until(&scene, "show bfd sessions", |text| text.contains("Up"));
    let (code, view) = status(&scene);
    assert_eq!(code, 0, "{view:#}");
    assert_eq!(
        (&view["peers"][0]["state"], &view["vips"][0]["state"]),
        (&"Established".into(), &"announced".into())
    );
    assert_eq!(view["vips"][0]["routes"][0]["peers"], serde_json::json!(["v4"]));
    link(&scene, 1, "down");
    println!("routes withdrawn {:?} after a backend failed", bird.has(&scene, 0));
    let (code, view) = status(&scene);
    let why = view["vips"][0]["why"].as_str().unwrap();
    assert_eq!((code, why), (1, "service \"www tcp 80\" has 1 of 2 required backends"), "{view:#}");
    link(&scene, 1, "up");
    let back = bird.has(&scene, 2);
    println!("routes announced {back:?} after the backend recovered");
    assert!(back >= Duration::from_secs(2), "the routes were announced before the hold-down ended");
    assert_eq!(status(&scene).1["vips"][0]["withdrawals"], 1);
}

/// BIRD with a single session, which has no channel for IPv4 until the test adds it.
const BIRD_V6: &str = "log stderr all;
router id 192.0.2.0;
protocol device { scan time 1; }
protocol direct { ipv4; ipv6; }
protocol bgp v6 { local 2001:db8:0:1::ff as 65000; neighbor 2001:db8:0:1::1 as 65101; password \"s3cret\";
  hold time 60; error wait time 1, 2; connect delay time 1; ipv6 { import all; export none; };
}
";

#[test]
fn family_that_router_did_not_negotiate_is_not_announced() {
    let one_session = |bed: &Bed| {
        let mut config = announced(bed);
        let begin = MORE.find("[[bgp.peers]]").unwrap();
        config.more = MORE[..begin].to_owned()
            + &MORE[MORE.rfind("[[bgp.peers]]").unwrap()..]
                .replace("families = [\"ipv6\"]", "next_hop4 = \"192.0.2.1\"");
        config
    };
    let scene = Scene::new(&BedSpec { backends: 2, ..BedSpec::default() }, one_session);
    let bird = Bird(Router::start_with(&scene.bed, RouterKind::Bird, BIRD_V6).unwrap());
    bird.has(&scene, 1);
    let (code, view) = status(&scene);
    let states: Vec<_> =
        view["vips"].as_array().unwrap().iter().map(|row| [&row["family"], &row["state"]]).collect();
    assert_eq!(states, [["ipv4", "not_carried"], ["ipv6", "announced"]], "{view:#}");
    assert_eq!((code, &view["vips"][0]["why"]), (1, &"peer v6 did not negotiate IPv4".into()));
    assert_eq!(view["vips"][0]["routes"][0]["peers"], serde_json::json!([]));
    assert_eq!(view["peers"][0]["refused"], serde_json::json!(["ipv4 unicast"]));
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let page = verb(&scene.bed, &["bgp", "status", "--socket", socket.to_str().unwrap()]).out;
    let of_v6 = page.lines().find(|line| line.contains(VIPS[1])).unwrap();
    assert!(!of_v6.contains("IPv4") && page.contains("ipv4 unicast"), "{page}");
    let metrics = scene.balancer.ask_plainly("/metrics").unwrap().1;
    for line in ["{vip=\"www\",family=\"ipv4\"} 0", "{vip=\"www\",family=\"ipv6\"} 1"]
        .map(|row| format!("sluicegate_vip_announced{row}"))
    {
        assert!(metrics.contains(&line), "{line} is missing in\n{metrics}");
    }
    let both =
        BIRD_V6.replace("export none; };\n}", "export none; };\n  ipv4 { import all; export none; };\n}");
    std::fs::write(scene.bed.dir().join("bird.conf"), both).unwrap();
    bird.ask("configure");
    bird.has(&scene, 2);
    let announced = eventually(BOUND, || (status(&scene).0 == 0).then_some(()));
    assert!(announced.is_some(), "{:#}", status(&scene).1);
}

#[test]
fn unhealthy_forwarder_withdraws_but_keeps_session() {
    let (mut scene, bird) = scene();
    bird.has(&scene, 2);
    let link = crate::liveness::described(&scene, "link_id:", "link_id:");
    crate::liveness::bpftool(&format!("link detach id {link}"));
    scene.balancer.process.wait_for_line(BOUND, |line| line.contains("forwarder unhealthy")).unwrap();
    println!("routes withdrawn {:?} after the forwarder was unhealthy", bird.has(&scene, 0));
    assert!(bird.ask("show protocols v4").contains("Established"));
    let (_, view) = status(&scene);
    assert!(
        view["vips"][0]["why"].as_str().unwrap().contains("no XDP program is attached to lb0"),
        "{view:#}"
    );
}

#[test]
fn reload_changes_announcements() {
    let (mut scene, bird) = scene();
    bird.has(&scene, 2);
    let mut config = announced(&scene.bed);
    config.vips.pop();
    config.vip_keys = config.vip_keys.replace("med = 50", "med = 60");
    scene.balancer.reload(&scene.bed, &config).unwrap();
    bird.has(&scene, 1);
    bird.until(&scene, "show route all 203.0.113.10/32", |text| text.contains("BGP.med: 1060"));
    assert!(bird.ask("show protocols v4").contains("Established"));
    scene.balancer.reload(&scene.bed, &announced(&scene.bed)).unwrap();
    bird.has(&scene, 2);
    let mut silent = announced(&scene.bed);
    silent.more = MORE.split("[bgp]").next().unwrap().to_owned();
    silent.vip_keys = String::new();
    scene.balancer.reload(&scene.bed, &silent).unwrap();
    bird.has(&scene, 0);
    bird.until(&scene, "show protocols v4", |text| !text.contains("Established"));
    scene.balancer.reload(&scene.bed, &announced(&scene.bed)).unwrap();
    bird.has(&scene, 2);
}

#[test]
fn drain_marks_then_withdraws_then_closes_session() {
    let (mut scene, bird) = scene();
    bird.has(&scene, 2);
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let order =
        |action: &str| verb(&scene.bed, &["machine", action, "--json", "--socket", socket.to_str().unwrap()]);
    let ended = order("drain");
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    let begun: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&begun["stage"], &begun["notice_seconds"]), (&"leaving".into(), &10.0.into()));
    let again: Value = serde_json::from_str(&order("drain").out).unwrap();
    assert!(again["notice_seconds"].as_f64().unwrap() < 10.0, "the remaining notice time is wrong, {again}");
    let note = again["notes"][0].as_str().unwrap();
    assert!(note.starts_with("already draining; at most ") && note.ends_with(" s left"), "{note}");
    let marked = |text: &str| text.contains("(65535,0)");
    bird.until(&scene, "show route all 203.0.113.10/32", marked);
    assert_eq!(order("undrain").code, Some(0));
    bird.until(&scene, "show route all 203.0.113.10/32", |text| text.contains("(65101,10)") && !marked(text));
    assert_eq!(order("undrain").code, Some(1), "undrain must fail without a drain");
    scene.wait_until_ready();
    scene.balancer.process.signal(Signal::SIGTERM).unwrap();
    bird.until(&scene, "show route all 203.0.113.10/32", marked);
    println!("routes withdrawn {:?} after they were marked with the community", bird.has(&scene, 0));
    assert_eq!(order("undrain").code, Some(1), "undrain must fail after a signal");
    let status = scene.balancer.process.wait(10 * BOUND);
    assert_eq!(status.and_then(|status| status.code()), Some(0), "{}", scene.balancer.process.tail());
    bird.until(&scene, "show protocols all v4", |text| text.contains("Administrative shutdown"));
}

#[test]
fn vip_without_session_is_not_announced() {
    let scene = Scene::new(&BedSpec { backends: 2, ..BedSpec::default() }, announced);
    let mut said = (0, Value::Null);
    let reported = eventually(BOUND, || {
        said = status(&scene);
        (said.1["vips"][0]["state"] == "no_session").then_some(())
    });
    assert!(reported.is_some(), "{:#}", said.1);
    let vip = &said.1["vips"][0];
    assert_eq!((said.0, &vip["routes"][0]["peers"]), (1, &serde_json::json!([])));
    assert_eq!(vip["why"], "no router of this VIP has a BGP session with this machine");
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let page = verb(&scene.bed, &["status", "--socket", socket.to_str().unwrap()]);
    assert_eq!(page.code, Some(1), "{}", page.out);
    assert!(page.out.contains("0 of 1 VIP announced"), "{}", page.out);
}
