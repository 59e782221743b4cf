//! Tests of BGP sessions during reloads, and of the ways in which sessions end. A balancer runs
//! with BIRD or gobgpd.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::{Balancer, Bed, BedSpec, Decap, Ended, LbConfig, Process, eventually};

use crate::scene::BOUND;

const VIP: &str = "203.0.113.10/32";

/// A balancer and a router that only receives routes. Fields are dropped in this order.
struct Scene {
    lb: Option<Balancer>,
    router: Process,
    _decaps: Vec<Decap>,
    bed: Bed,
}

impl Scene {
    fn new(start: impl FnOnce(&Bed) -> Process, bgp: &str) -> Self {
        let bed = Bed::new(&BedSpec { balancers: 1, ..BedSpec::default() }).unwrap();
        let router = start(&bed);
        let decaps = Decap::start_all(&bed).unwrap();
        write_key(&bed, "s3cret");
        let lb = Balancer::start(&bed, 0, &config(&bed, bgp)).unwrap();
        Self { lb: Some(lb), router, _decaps: decaps, bed }
    }

    fn lb(&self) -> &Balancer {
        self.lb.as_ref().unwrap()
    }

    fn verb(&self, words: &[&str]) -> Ended {
        let socket = LbConfig::admin_socket(&self.bed, 0).to_string_lossy().into_owned();
        let args = [words, &["--socket", &socket]].concat();
        Process::to_end(&self.bed.balancers[0].ns, self.bed.program().unwrap(), &args, BOUND).unwrap()
    }

    /// Writes a configuration with this `[bgp]` section, reloads it and returns the result.
    fn reload(&self, bgp: &str) -> Value {
        config(&self.bed, bgp).write(&self.bed, 0).unwrap();
        let ended = self.verb(&["config", "reload", "--json"]);
        serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{}{}", ended.out, ended.err))
    }

    fn peer(&self) -> Value {
        self.lb().ask("/v1/bgp").unwrap()["peers"][0].clone()
    }

    fn until_peer(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let found = eventually(BOUND, || Some(self.peer()).filter(|peer| wanted(peer)));
        let reported = || format!("{}\n{}", self.lb().process.tail(), self.router.tail());
        found.unwrap_or_else(|| panic!("{what}: {:#}\n{}", self.peer(), reported()))
    }

    fn established(&self, times: u64) -> Value {
        let wanted = |peer: &Value| peer["state"] == "Established" && peer["established"] == times;
        self.until_peer(&format!("session {times}"), wanted)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.bed.dir().join(name)
    }

    fn birdc(&self, question: &str) -> String {
        let socket = self.path("bird.ctl").to_string_lossy().into_owned();
        self.bed.router.text("birdc", &[&["-s", &socket][..], &[question]].concat()).unwrap_or_default()
    }

    fn bird_has(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Duration {
        let start = Instant::now();
        let found = eventually(BOUND, || wanted(&self.birdc(what)).then_some(()));
        assert!(found.is_some(), "{what}: {}\n{}", self.birdc(what), self.router.tail());
        start.elapsed()
    }

    /// Gives BIRD a new configuration with these session options.
    fn bird_becomes(&self, options: &str) {
        fs::write(self.path("bird.conf"), bird_config(options)).unwrap();
        let said = self.birdc("configure");
        assert!(said.contains("Reconfig"), "{said}");
    }
}

fn write_key(bed: &Bed, key: &str) {
    let path = bed.dir().join("bgp.key");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    file.write_all(key.as_bytes()).unwrap();
}

fn config(bed: &Bed, bgp: &str) -> LbConfig {
    // An IPv4 session can carry IPv6 routes only if the configuration has an IPv6 next hop.
    let carries_both = bgp.contains("next_hop6");
    let vips = bed.spec.vips.iter().copied().filter(|vip| vip.is_ipv4() || carries_both).collect();
    LbConfig {
        vips,
        cluster: "drain_time = \"2s\"".into(),
        vip_keys: "announce = {}".into(),
        more: format!("[bgp]\nasn = 65101\ngraceful_shutdown = \"1s\"\n{bgp}"),
        ..LbConfig::new(bed)
    }
}

/// Returns the section `[bgp]` with the lines `own` and a peer with the lines `peer`.
fn bgp(own: &str, peer: &str) -> String {
    format!(
        "{own}\n[[bgp.peers]]\nname = \"tor\"\naddress = \"192.0.2.0\"\nasn = 65000\nhold_time = \"9s\"\n\
         max_retry = \"2s\"\npassword_file = \"bgp.key\"\n{peer}\n"
    )
}

fn bird_config(options: &str) -> String {
    format!(
        "log stderr all;\nrouter id 192.0.2.0;\nprotocol device {{ scan time 1; }}\nprotocol direct {{ ipv4; }}\n\
         protocol bfd {{ interface \"*\" {{ min rx interval 50 ms; min tx interval 100 ms; multiplier 50; }}; }}\n\
         protocol bgp lb {{ local 192.0.2.0 as 65000; neighbor 192.0.2.1 as 65101; hold time 9; error wait time 1, 2;\n\
         {options}\n ipv4 {{ import all; export none; }}; }}\n"
    )
}

fn bird(options: &'static str) -> impl FnOnce(&Bed) -> Process {
    move |bed| {
        let path = |name: &str| bed.dir().join(name).to_string_lossy().into_owned();
        let (file, socket, pid) = (path("bird.conf"), path("bird.ctl"), path("bird.pid"));
        fs::write(&file, bird_config(options)).unwrap();
        let bird =
            Process::start(&bed.router, "bird", "bird", &["-f", "-c", &file, "-s", &socket, "-P", &pid]);
        let there = eventually(BOUND, || fs::exists(&socket).unwrap().then_some(()));
        assert!(there.is_some(), "BIRD does not start");
        bird.unwrap()
    }
}

const PASSIVE: &str = "password \"s3cret\"; passive on;";
const DIALS: &str = "password \"s3cret\"; connect delay time 1; connect retry time 1;";

#[test]
fn reload_changes_session_direction_and_listeners() {
    let scene = Scene::new(bird(PASSIVE), &bgp("", ""));
    scene.established(1);
    scene.bird_has("show route", |text| text.contains(VIP));
    let answer = scene.reload(&bgp("listen = [\"192.0.2.1:179\"]", "passive = true"));
    let changed = answer["changed"].to_string();
    assert!(
        changed.contains("bgp.listen: none -> 192.0.2.1:179") && !changed.contains("restart"),
        "{answer:#}"
    );
    assert_eq!(
        (&answer["warnings"], &answer["needs_restart"]),
        (&Value::Array(vec![]), &Value::Array(vec![]))
    );
    let kept = scene.established(1);
    assert_eq!(kept["last_end"], Value::Null, "{kept:#}");
    // BIRD now opens the connection. This configuration change ends the session, and the next
    // session arrives at the balancer's listener.
    scene.bird_becomes(DIALS);
    println!("BIRD has the route after {:?}", scene.bird_has("show route", |text| text.contains(VIP)));
    let again = scene.established(2);
    assert_eq!(again["last_error"], Value::Null);
    println!("last end: {} {} s ago", again["last_end"], again["last_end_seconds"]);

    // No interface has this address yet. The reload reports this, the session continues, and the
    // balancer starts to listen when the address is added.
    let answer = scene.reload(&bgp("listen = [\"198.51.100.79:179\"]", "passive = true"));
    println!("{}", answer["warnings"]);
    assert!(answer["warnings"].to_string().contains("cannot listen on 198.51.100.79:179"), "{answer:#}");
    let ended = scene.verb(&["bgp", "status"]);
    assert!(ended.code == Some(1) && ended.out.contains("cannot listen on"), "{}", ended.out);
    let listens = |at: &str| {
        let text = scene.bed.balancers[0].ns.text("ss", &["-Hltn"]).unwrap();
        text.split_whitespace().any(|word| word == at)
    };
    assert!(!listens("192.0.2.1:179"));
    scene.bed.balancers[0].ns.ip("addr add 198.51.100.79/32 dev lo").unwrap();
    let well = eventually(BOUND, || (listens("198.51.100.79:179")).then_some(()));
    assert!(well.is_some(), "{}", scene.lb().process.tail());
    let quiet = eventually(BOUND, || (scene.verb(&["bgp", "status"]).code == Some(0)).then_some(()));
    assert!(quiet.is_some(), "{}", scene.verb(&["bgp", "status"]).out);
    // The first reload makes the balancer listen on all addresses, and the second one on none.
    for (own, at) in [("listen = [\"0.0.0.0:179\"]", Some("0.0.0.0:179")), ("", None)] {
        let answer = scene.reload(&bgp(own, ""));
        assert_eq!(answer["warnings"], Value::Array(vec![]), "{answer:#}");
        assert_eq!(listens("0.0.0.0:179"), at.is_some());
        assert!(!listens("198.51.100.79:179"));
    }
    scene.established(2);
}

#[test]
fn reload_changes_peer_without_session_restart() {
    let mut scene = Scene::new(bird("password \"s3cret\"; passive on; ttl security on;"), &bgp("", ""));
    scene.established(1);
    let answer =
        scene.reload(&bgp("", "hops = 1").replace("\"tor\"", "\"top-of-rack\"").replace("\"9s\"", "\"30s\""));
    println!("{}", answer["changed"]);
    let said = answer["changed"].to_string();
    assert!(said.contains("renamed from tor") && said.contains("from the next session on"), "{answer:#}");
    let peer = scene.established(1);
    assert_eq!((&peer["name"], &peer["hold_seconds"]), (&"top-of-rack".into(), &9.0.into()));
    scene.bird_has("show route", |text| text.contains(VIP));
    // The key changes first on the balancer and then in BIRD. BIRD restarts the session when its
    // key changes.
    let seen = scene.lb().process.line_count();
    write_key(&scene.bed, "an0ther");
    let answer = scene.reload(&bgp("", "hops = 1").replace("\"tor\"", "\"top-of-rack\""));
    println!("{}", answer["changed"]);
    assert!(answer["changed"].to_string().contains("MD5 key changed"), "{answer:#}");
    assert!(!answer.to_string().contains("an0ther"));
    scene.established(1);
    let start = Instant::now();
    scene.bird_becomes("password \"an0ther\"; passive on; ttl security on;");
    let peer = scene.established(2);
    scene.bird_has("show route", |text| text.contains(VIP));
    println!(
        "BIRD restarted the session with the new key in {:?}, last end {}",
        start.elapsed(),
        peer["last_end"]
    );
    let warned = scene
        .lb
        .as_mut()
        .unwrap()
        .process
        .wait_for_line_after(seen, BOUND, |line| line.contains("established"));
    println!("{}", warned.unwrap());
}

#[test]
fn session_restart_marks_routes_first() {
    let mut scene = Scene::new(bird(PASSIVE), &bgp("", ""));
    scene.established(1);
    scene.bird_has("show route", |text| text.contains(VIP));
    let seen = scene.lb().process.line_count();
    let answer = scene.reload(&bgp("", "families = [\"ipv4\"]"));
    let said = answer["changed"].to_string();
    assert!(said.contains("its session restarts after 1s"), "{answer:#}");
    let start = Instant::now();
    scene.bird_has(&format!("show route all {VIP}"), |text| text.contains("(65535,0)"));
    let (mut there, mut gap) = (Instant::now(), Duration::ZERO);
    let back = eventually(BOUND, || {
        let has = scene.birdc("show route").contains(VIP);
        if has {
            gap = gap.max(there.elapsed());
            there = Instant::now();
        }
        (has && scene.peer()["established"] == 2).then_some(())
    });
    assert!(back.is_some(), "{:#}", scene.peer());
    println!("session restarted {:?} after the reload, route missing for at most {gap:?}", start.elapsed());
    assert!(start.elapsed() >= Duration::from_secs(1), "the session ended before the notice time");
    scene.bird_has(&format!("show route all {VIP}"), |text| {
        text.contains("BGP.as_path") && !text.contains("65535")
    });
    let lines = scene.lb.as_mut().unwrap().process.lines();
    let reported: Vec<&str> = lines.iter().skip(seen).map(|line| line.text.as_str()).collect();
    let ended = reported
        .iter()
        .find(|line| line.contains("the peer's configuration changed"))
        .expect("the session end is not logged");
    println!("{ended}");
    assert!(!reported.iter().any(|line| line.contains("WARN") || line.contains("Some(")), "{reported:#?}");
}

#[test]
fn bfd_change_keeps_session_and_removed_peer_is_marked() {
    // The large multiplier prevents BFD losses on a busy machine.
    let bfd_bird = "password \"s3cret\"; passive on; bfd on;";
    let mut scene = Scene::new(bird(bfd_bird), &bgp("", "bfd = { multiplier = 50 }"));
    let is_watched = |peer: &Value| peer["bfd"]["state"] == "Up";
    scene.until_peer("BFD", is_watched);
    let seen = scene.lb().process.line_count();
    for peer in [
        "bfd = { interval = \"300ms\", multiplier = 40 }",
        "",
        "bfd = { multiplier = 50 }",
        "bfd = { interval = \"50ms\", multiplier = 60 }",
    ] {
        println!("{}", scene.reload(&bgp("", peer))["changed"]);
        // BIRD needs less time than this to process the end of the BFD session.
        std::thread::sleep(Duration::from_millis(700));
        assert!(is_watched(&scene.established(1)), "{peer}: {:#}", scene.peer());
    }
    scene.bird_has(&format!("show route all {VIP}"), |text| text.contains("BGP.as_path"));
    // A different peer, whose address belongs to no host, replaces the router in the configuration.
    let moved = bgp("", "bfd = { multiplier = 50 }").replace("\"192.0.2.0\"", "\"198.51.100.7\"");
    println!("{}", scene.reload(&moved)["changed"]);
    scene.bird_has(&format!("show route all {VIP}"), |text| text.contains("(65535,0)"));
    println!("routes withdrawn {:?} later", scene.bird_has("show route", |text| !text.contains(VIP)));
    scene.bird_has("show protocols all lb", |text| text.contains("Peer de-configured"));
    let lines = scene.lb.as_mut().unwrap().process.lines();
    let warned =
        lines.iter().skip(seen).filter(|line| line.text.contains("WARN") && line.text.contains("BFD"));
    assert_eq!(warned.count(), 0, "{}", scene.lb().process.tail());
}

#[test]
fn removal_of_last_peer_marks_routes_first() {
    let mut scene = Scene::new(bird(PASSIVE), &bgp("", ""));
    scene.bird_has("show route", |text| text.contains(VIP));
    let elsewhere =
        "machines = [\"lb9\"]\n[machine.lb9]\naddresses = [\"192.0.2.99\"]\ninterfaces = [\"eth0\"]";
    println!("{}", scene.reload(&bgp("", elsewhere))["changed"]);
    scene.bird_has(&format!("show route all {VIP}"), |text| text.contains("(65535,0)"));
    println!("routes removed {:?} later", scene.bird_has("show route", |text| !text.contains(VIP)));
    scene.bird_has("show protocols all lb", |text| text.contains("Administrative shutdown"));
    // The peer is added again and gets a new session.
    scene.reload(&bgp("", ""));
    scene.bird_has("show route", |text| text.contains(VIP));
    let lines = scene.lb.as_mut().unwrap().process.lines();
    assert!(!lines.iter().any(|line| line.text.contains("ERROR")), "{}", scene.lb().process.tail());
}

#[test]
fn drain_wait_returns_when_the_process_exits() {
    let mut scene = Scene::new(bird(PASSIVE), &bgp("", ""));
    scene.bird_has("show route", |text| text.contains(VIP));
    let start = Instant::now();
    let ended = scene.verb(&["machine", "drain", "--until-stopped"]);
    println!("after {:?}: {}", start.elapsed(), ended.out);
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert!(
        ended.out.contains("is draining") && ended.out.trim_end().ends_with("process exited"),
        "{}",
        ended.out
    );
    assert!(start.elapsed() >= Duration::from_secs(1), "the routes were not marked for a second");
    let mut lb = scene.lb.take().unwrap();
    let status = lb.process.wait(BOUND);
    assert!(status.is_some_and(|status| status.success()), "{status:?}\n{}", lb.process.tail());
    scene.bird_has("show route", |text| !text.contains(VIP));
    scene.bird_has("show protocols all lb", |text| text.contains("Administrative shutdown"));
    let lines = lb.process.lines();
    let warned = lines.iter().filter(|line| line.text.contains("WARN") && line.text.contains("BGP"));
    assert_eq!(warned.count(), 0, "{}", lb.process.tail());
}

const GOBGPD: &str = "[global.config]
  as = 65000
  router-id = \"192.0.2.0\"
[[neighbors]]
  [neighbors.config]
    neighbor-address = \"192.0.2.1\"
    peer-as = 65101
    auth-password = \"s3cret\"
  [neighbors.transport.config]
    passive-mode = true
  [[neighbors.afi-safis]]
    [neighbors.afi-safis.config]
      afi-safi-name = \"ipv4-unicast\"
  [[neighbors.afi-safis]]
    [neighbors.afi-safis.config]
      afi-safi-name = \"ipv6-unicast\"
";

fn gobgpd(bed: &Bed) -> Process {
    let file = bed.dir().join("gobgpd.toml");
    fs::write(&file, GOBGPD).unwrap();
    let args = ["-f", file.to_str().unwrap(), "--api-hosts", "127.0.0.1:50051", "--pprof-disable", "-p"];
    Process::start(&bed.router, "gobgpd", "gobgpd", &args).unwrap()
}

#[test]
fn gobgpd_session_with_both_families_drains() {
    let mut scene = Scene::new(gobgpd, &bgp("", "next_hop6 = \"2001:db8:0:1::1\""));
    let has = |scene: &Scene, family: &str, wanted: &dyn Fn(&str) -> bool| {
        let mut last = String::new();
        let found = eventually(BOUND, || {
            last = scene.bed.router.text("gobgp", &["global", "rib", "-a", family]).unwrap_or_default();
            wanted(&last).then_some(())
        });
        assert!(found.is_some(), "{last}\n{}", scene.router.tail());
    };
    has(&scene, "ipv4", &|text| text.contains(VIP) && text.contains("192.0.2.1"));
    has(&scene, "ipv6", &|text| text.contains("2001:db8:f::10/128") && text.contains("2001:db8:0:1::1"));
    scene.established(1);
    let start = Instant::now();
    assert_eq!(scene.verb(&["machine", "drain"]).code, Some(0));
    has(&scene, "ipv4", &|text| {
        ["65535:0", "planned-shut", "graceful-shutdown"].iter().any(|word| text.contains(word))
    });
    has(&scene, "ipv4", &|text| !text.contains(VIP));
    println!("gobgpd removed the routes {:?} after the command", start.elapsed());
    let mut lb = scene.lb.take().unwrap();
    assert!(lb.process.wait(BOUND).is_some_and(|status| status.success()), "{}", lb.process.tail());
    let reported = scene.bed.router.text("gobgp", &["neighbor", "192.0.2.1"]).unwrap();
    println!("gobgpd: {}", reported.lines().take(3).collect::<Vec<_>>().join(" / "));
}
