//! Tests of `sluicegate capture`, which read the capture files with tshark.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use testbed::{Bed, FrameSpec, LbConfig, Process, cut, eventually, inject};

use crate::groups::GROUP;
use crate::scene::{BOUND, Scene, verb};

/// A running `sluicegate capture` process and its file.
struct Running {
    process: Process,
    file: PathBuf,
}

/// A frame as tshark prints it.
#[derive(Clone, Debug, PartialEq)]
struct Shown {
    interface: String,
    /// The original and the captured length in bytes.
    lengths: (usize, usize),
    comment: String,
    /// The destination addresses of the outer and the inner header.
    destinations: String,
    seconds: f64,
}

fn socket(scene: &Scene) -> String {
    LbConfig::admin_socket(&scene.bed, 0).to_str().unwrap().to_owned()
}

fn start(scene: &Scene, name: &str, args: &[&str]) -> Running {
    let file = scene.bed.dir().join(format!("{name}.pcapng"));
    let socket = socket(scene);
    let args = [&["capture", "--socket", &socket, "-w", file.to_str().unwrap()], args].concat();
    let host = &scene.bed.balancers[0];
    let mut process = Process::start(&host.ns, name, scene.bed.program().unwrap(), &args).unwrap();
    process.wait_for_line(BOUND, |line| line.contains("capturing to")).unwrap();
    Running { process, file }
}

impl Running {
    /// Ends the capture. Returns the last line of the command's output and the frames in the file.
    fn end(mut self, scene: &Scene) -> (String, Vec<Shown>) {
        self.process.signal(Signal::SIGINT).unwrap();
        self.over(scene)
    }

    fn over(&mut self, scene: &Scene) -> (String, Vec<Shown>) {
        let status = self.process.wait(BOUND).unwrap_or_else(|| panic!("{}", self.process.tail()));
        assert!(status.success(), "{}", self.process.tail());
        let last = self.process.lines().pop().unwrap().text;
        (last, shown(scene, &self.file))
    }
}

fn shown(scene: &Scene, file: &Path) -> Vec<Shown> {
    read(scene, file).unwrap()
}

/// Reads the capture file. Returns an error while the last block of the file is incomplete.
fn read(scene: &Scene, file: &Path) -> anyhow::Result<Vec<Shown>> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-r"]).arg(file).args(["-T", "fields", "-E", "separator=|"]);
    for field in
        ["frame.interface_name", "frame.len", "frame.cap_len", "frame.comment", "ip.dst", "frame.time_epoch"]
    {
        tshark.args(["-e", field]);
    }
    let text = String::from_utf8(scene.bed.client.ns.output(tshark)?.stdout).unwrap();
    Ok(text.lines().map(row).collect())
}

fn row(line: &str) -> Shown {
    let fields: Vec<&str> = line.split('|').collect();
    let [interface, whole, kept, comment, destinations, seconds] = fields[..] else { panic!("{line}") };
    Shown {
        interface: interface.to_owned(),
        lengths: (whole.parse().unwrap(), kept.parse().unwrap()),
        comment: comment.to_owned(),
        destinations: destinations.to_owned(),
        seconds: seconds.parse().unwrap(),
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

// Promise: replay-fidelity
#[test]
fn replay_of_capture_has_each_packet_once() {
    let scene = Scene::with(LbConfig::new);
    let running = start(&scene, "replayed", &["--snaplen", "2048"]);
    let mut frames = Vec::new();
    for id in 0..8 {
        // Later fragments arrive before the first fragment and are held until it arrives. Some
        // fragments are passed to a different thread, which is selected by the hash of addresses
        // and protocol.
        let mut whole = scene.frame(id % 2 == 0, Bed::SINK_PORT);
        whole.source.set_port(5_000 + id);
        whole.payload = vec![7; 600];
        let mut pieces = cut(&whole.bytes(), u32::from(id) * 7 + 1, 400);
        pieces.reverse();
        frames.extend(pieces);
        whole.destination.set_port(54);
        frames.push(whole.bytes());
    }
    for frame in &frames {
        inject(&scene.bed.router, &scene.bed.balancers[0].port, frame).unwrap();
    }
    let whole = frames.len() as u64;
    let all = || (scene.balancer.counters().unwrap().received() >= whole).then_some(());
    assert!(eventually(BOUND, all).is_some(), "{}", scene.diagnosis());
    let (settled, file) = (scene.settled(), running.file.clone());
    running.end(&scene);
    let config = LbConfig::new(&scene.bed).write(&scene.bed, 0).unwrap();
    let [from, to, config] =
        [&file, &scene.bed.dir().join("again.pcap"), &config].map(|path| path.to_str().unwrap().to_owned());
    let ended = verb(&scene.bed, &["replay", &from, &to, "--config", &config, "--json"]);
    let said: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let expected = [("received", whole), ("sent", settled.sent()), ("held", 0)];
    for (name, count) in expected {
        assert_eq!(said[name], count, "{name}: {ended:?}");
    }
    assert_eq!(said["drops"]["no_vip"], settled.over_threads(&["drops", "no_vip"]), "{ended:?}");
    assert!(
        said["left_out"].as_u64().unwrap() > settled.sent(),
        "unexpected number of sent and repeated packets, {said}"
    );
}

#[test]
fn tshark_shows_received_and_sent_packets_with_verdict() {
    let scene = Scene::with(LbConfig::new);
    let port = &scene.bed.balancers[0].port;
    let send = |port_number| {
        let mut frame = scene.frame(true, port_number);
        frame.payload = vec![7; 300];
        let bytes = frame.bytes();
        inject(&scene.bed.router, port, &bytes).unwrap();
        bytes.len()
    };
    let (began, running) = (now(), start(&scene, "all", &["--snaplen", "128"]));
    let whole = send(Bed::SINK_PORT);
    send(54);
    eventually(BOUND, || (scene.balancer.counters().unwrap().over_threads(&["captured"]) >= 2).then_some(()))
        .unwrap();
    let status = verb(&scene.bed, &["status", "--socket", &socket(&scene)]);
    assert!(status.out.contains("capture 1 packet in 1, 128 bytes each"), "{status:?}");
    let (last, frames) = running.end(&scene);
    assert_eq!(last, "sluicegate: captured 2 packets of 2 that matched, 0 lost");
    let [came, left, dropped] = &frames[..] else { panic!("{frames:#?}") };
    let vip = scene.bed.vip(true, 0).ip();
    assert_eq!((came.interface.as_str(), came.lengths), ("before", (whole, 128)));
    assert_eq!((left.interface.as_str(), left.lengths), ("after", (whole + 24, 128)));
    let backend =
        scene.bed.backends.iter().find(|host| came.comment.contains(&format!("address={} ", host.v4)));
    let backend = backend.unwrap_or_else(|| panic!("{came:?}"));
    assert_eq!(
        (&came.destinations, &left.destinations),
        (&vip.to_string(), &format!("{},{vip}", backend.v4))
    );
    let name = &backend.name;
    assert!(came.comment.starts_with("verdict=tx service=\"www udp "), "{came:?}");
    assert!(came.comment.contains(&format!(" backend=\"{name}\" ")), "{came:?}");
    assert!(came.comment.ends_with(" flow=new thread=0 generation=1"), "{came:?}");
    assert_eq!(came.comment, left.comment);
    assert_eq!(dropped.comment, "verdict=drop reason=no_vip thread=0 generation=1");
    assert_eq!((dropped.interface.as_str(), dropped.lengths), ("before", (whole, 128)));
    for frame in &frames {
        assert!((began - 0.1..now() + 0.1).contains(&frame.seconds), "{began} {frame:?}");
    }
}

#[test]
fn capture_conditions_exclude_other_packets() {
    let scene = Scene::with(LbConfig::new);
    let port = &scene.bed.balancers[0].port;
    let mut flows = scene.flows(true, 30);
    let answered = scene.round(&mut flows);
    let mut round = || {
        scene.round(&mut flows);
        scene.flows(false, 4).round().unwrap();
        for ipv4 in [true, false] {
            inject(&scene.bed.router, port, &scene.frame(ipv4, 54).bytes()).unwrap();
            let mut last = scene.frame(ipv4, Bed::SINK_PORT);
            last.ttl = 1;
            inject(&scene.bed.router, port, &last.bytes()).unwrap();
        }
        scene.settled();
    };
    let to_b1 = answered.iter().filter(|name| *name == "b1").count();
    let before = |frames: &[Shown]| frames.iter().filter(|frame| frame.interface == "before").count();
    let cases: [(&str, &[&str], &str, std::ops::RangeInclusive<usize>); 5] = [
        ("no_vip", &["--drop", "no_vip"], "verdict=drop reason=no_vip ", 2..=2),
        ("ttl", &["--drop", "ttl,malformed", "--backend", "b1"], " reason=ttl ", 0..=2),
        ("vip", &["--vip", "www"], "", 38..=38),
        ("backend", &["--backend", "b1", "--vip", "www"], " backend=\"b1\" ", to_b1..=to_b1 + 6),
        ("new", &["--new-flows"], " flow=new ", 4..=6),
    ];
    for (name, args, words, count) in cases {
        let running = start(&scene, name, args);
        round();
        let (last, frames) = running.end(&scene);
        assert!(frames.iter().all(|frame| frame.comment.contains(words)), "{name}: {frames:#?}");
        assert!(count.contains(&before(&frames)), "{name}: {last} {frames:#?}");
        assert!(last.ends_with(" 0 lost"), "{last}");
    }
}

#[test]
fn capture_ends_at_limits_and_with_its_client() {
    let scene = Scene::with(LbConfig::new);
    let mut flows = scene.flows(true, 20);
    let sampled = start(&scene, "sampled", &["--sample", "1/10", "--count", "3"]);
    // The first round has 20 packets, of which the capture samples the first and the eleventh. The
    // capture ends only with the twenty-first packet.
    scene.round(&mut flows);
    let refused = verb(&scene.bed, &["capture", "--socket", &socket(&scene), "-w", "-"]);
    assert!(refused.code == Some(1) && refused.err.contains("a capture is already running"), "{refused:?}");
    scene.round(&mut flows);
    let mut sampled = sampled;
    let (last, frames) = sampled.over(&scene);
    assert!(last.starts_with("sluicegate: captured 3 packets of "), "{last}");
    assert_eq!(frames.len(), 6);

    let mut brief = start(&scene, "brief", &["--duration", "1s"]);
    assert_eq!(brief.over(&scene).1, []);
    for wrong in [["--vip", "nobody"], ["--backend", "nobody"], ["--drop", "nothing"]] {
        let socket = socket(&scene);
        let args = [&["capture", "--socket", &socket, "-w", "-"], &wrong[..]].concat();
        let ended = verb(&scene.bed, &args);
        assert!(ended.code == Some(1) && ended.err.contains(wrong[1]), "{ended:?}");
    }

    let mut killed = start(&scene, "killed", &[]);
    scene.round(&mut flows);
    let written = || read(&scene, &killed.file).is_ok_and(|frames| frames.len() == 40).then_some(());
    eventually(BOUND, written).unwrap();
    killed.process.kill();
    let since = Instant::now();
    let status = || verb(&scene.bed, &["status", "--socket", &socket(&scene)]);
    let off = eventually(BOUND, || (!status().out.contains("capture")).then_some(()));
    assert!(off.is_some(), "{:?}", status());
    let of = || scene.balancer.counters().unwrap().over_threads(&["captured"]);
    let off = eventually(BOUND, || {
        let before = of();
        scene.round(&mut flows);
        (of() == before).then_some(())
    });
    assert!(off.is_some(), "the capture did not end with its client");
    println!("capture ended {:?} after its client was killed", since.elapsed());
    // The last block of the file is complete.
    assert_eq!(shown(&scene, &killed.file).len(), 40);
}

#[test]
fn capture_selects_prefix_group_vip_by_name() {
    let scene = Scene::with(|bed| LbConfig { more: GROUP.into(), ..LbConfig::new(bed) });
    let running = start(&scene, "edge", &["--vip", "edge", "--drop", "no_vip"]);
    let port = &scene.bed.balancers[0].port;
    let send = |to: SocketAddr| {
        let frame = FrameSpec { destination: to, ..scene.frame(to.is_ipv4(), 54) };
        inject(&scene.bed.router, port, &frame.bytes()).unwrap();
    };
    // The capture must contain packets to addresses in the configured and in an unknown cluster.
    // The capture must not contain packets to other suffixes of the group or to other VIPs.
    let wanted = ["198.51.100.148:54", "[2001:db8:e:ab00::20]:54"].map(|to| to.parse().unwrap());
    let other = ["198.51.100.21:54", "[2001:db8:e::21]:54"].map(|to| to.parse().unwrap());
    wanted.into_iter().chain(other).for_each(send);
    send(scene.bed.vip(true, 54));
    scene.drops_become("no_vip", 5);
    let (last, frames) = running.end(&scene);
    assert_eq!(last, "sluicegate: captured 2 packets of 2 that matched, 0 lost");
    let comments: Vec<&str> = frames.iter().map(|frame| frame.comment.as_str()).collect();
    assert_eq!(comments, ["verdict=drop reason=no_vip thread=0 generation=1"; 2]);
    assert_eq!(frames[0].destinations, "198.51.100.148");
}

#[test]
fn tshark_reads_along_from_a_pipe() {
    let scene = Scene::with(LbConfig::new);
    let line = format!(
        "{} capture --socket {} --drop no_vip -w - | tshark -n -l -r - -T fields -e frame.comment",
        scene.bed.program().unwrap().display(),
        socket(&scene)
    );
    let ns = &scene.bed.balancers[0].ns;
    let mut pipe = Process::start(ns, "pipe", "sh", &["-c", &line]).unwrap();
    pipe.wait_for_line(BOUND, |line| line.contains("capturing to")).unwrap();
    inject(&scene.bed.router, &scene.bed.balancers[0].port, &scene.frame(true, 54).bytes()).unwrap();
    // tshark prints the packet while the capture is still running.
    pipe.wait_for_line(BOUND, |line| line == "verdict=drop reason=no_vip thread=0 generation=1").unwrap();
}
