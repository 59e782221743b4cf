//! Tests `replay` with generated captures. The counters of each replay must add up.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

use admin::pcapng::{self, Interface, Packet};
use proptest::prelude::*;
use serde_json::Value;
use testbed::{Frame, FrameSpec, cut, may_be_cut, read_pcap};

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SECOND: u64 = 1_000_000;

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = Self(env::temp_dir().join(format!("sluicegate-replay-{}-{number}", process::id())));
        fs::create_dir_all(&folder.0).unwrap();
        fs::write(folder.0.join("hash.key"), "000102030405060708090a0b0c0d0e0f\n").unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(folder.0.join("hash.key"), private).unwrap();
        folder.config("a.toml", "b1", "");
        folder
    }

    /// Writes a configuration with a pool of one backend.
    fn config(&self, name: &str, backend: &str, more: &str) {
        let address = format!("198.18.1.{}", backend.trim_start_matches('b'));
        let text = format!(
            "[cluster]\nname = \"fra1\"\nhash_key_file = \"hash.key\"\ntable_size = 1009\n[machine.lb1]\n\
             addresses = [\"192.0.2.1\", \"2001:db8::1\"]\ninterfaces = [\"eth0\", \"eth1\"]\n\
             [check.up]\ntcp = {{ port = 80 }}\n\
             [pool.web]\nchecks = [\"up\"]\nbackends = [{{ name = \"{backend}\", address = \"{address}\" }}]\n\
             [vip.www]\naddresses = [\"203.0.113.10\", \"2001:db8:f::10\"]\n\
             services = [{{ ports = [80], protocol = \"tcp\", pool = \"web\" }}, \
             {{ ports = [53], protocol = \"udp\", pool = \"web\" }}]\n{more}"
        );
        fs::write(self.0.join(name), text).unwrap();
    }

    /// Replays frames with the given times in microseconds. Returns the counters and the sent
    /// frames.
    fn replay(&self, frames: &[(u64, Vec<u8>)], more: &[&str]) -> (Value, Vec<Vec<u8>>) {
        fs::write(self.0.join("in"), pcap(frames)).unwrap();
        self.replayed(more)
    }

    fn replayed(&self, more: &[&str]) -> (Value, Vec<Vec<u8>>) {
        let output = self.run(more);
        assert!(output.status.success(), "{output:?}");
        let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_balanced(&figures);
        let sent = read_pcap(&self.0.join("out")).unwrap();
        assert_eq!(figures["written"], sent.len());
        (figures, sent)
    }

    fn run(&self, more: &[&str]) -> Output {
        let mut verb = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        verb.current_dir(&self.0).args(["replay", "in", "out", "--config", "a.toml", "--json"]);
        verb.args(more).output().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn assert_balanced(figures: &Value) {
    let of = |name: &str| figures[name].as_u64().unwrap();
    let dropped: u64 = figures["drops"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    let sum = |names: &[&str]| names.iter().map(|name| of(name)).sum::<u64>();
    assert_eq!(of("read"), sum(&["left_out", "passed", "too_long", "received"]), "{figures}");
    assert_eq!(
        sum(&["received", "originated"]),
        sum(&["sent", "replied", "taken", "held"]) + dropped,
        "{figures}"
    );
    assert_eq!(of("written"), sum(&["sent", "replied"]), "{figures}");
    assert_eq!(of("schema"), 1);
}

fn pcap(frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let words = |words: [u32; 4]| words.into_iter().flat_map(u32::to_le_bytes);
    let mut bytes: Vec<u8> = words([0xa1b2_c3d4, 4 << 16 | 2, 0, 0]).collect();
    bytes.extend([1_u32 << 16, 1].into_iter().flat_map(u32::to_le_bytes));
    for (time, frame) in frames {
        let time = 1_700_000_000 * SECOND + time;
        let length = u32::try_from(frame.len()).unwrap();
        let [whole, part] = [time / SECOND, time % SECOND].map(|part| u32::try_from(part).unwrap());
        bytes.extend(words([whole, part, length, length]));
        bytes.extend(frame);
    }
    bytes
}

fn client(is_v4: bool, port: u16) -> SocketAddr {
    let address = if is_v4 { "192.0.2.99" } else { "2001:db8:c::99" };
    SocketAddr::new(address.parse().unwrap(), port)
}

fn vip(is_v4: bool, port: u16) -> SocketAddr {
    let address = if is_v4 { "203.0.113.10" } else { "2001:db8:f::10" };
    SocketAddr::new(address.parse().unwrap(), port)
}

fn udp(is_v4: bool, from: u16, bytes: usize) -> FrameSpec {
    let spec = FrameSpec::udp(ROUTER, OWN, client(is_v4, from), vip(is_v4, 53));
    FrameSpec { payload: vec![0x5a; bytes], ..spec }
}

fn backend(sent: &[u8]) -> String {
    Frame::parse(sent).unwrap().ip.destination.to_string()
}

/// Assigns times to the frames, one millisecond apart.
fn timed(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<(u64, Vec<u8>)> {
    (0..).step_by(1_000).zip(frames).collect()
}

#[test]
fn held_fragments_expire_by_capture_clock() {
    let folder = Folder::new();
    // The capture has 40 later fragments without a first fragment, followed by a datagram whose
    // first fragment arrives last, and by an unfragmented packet.
    let pieces = |id: u16| cut(&udp(true, 4_000 + id, 600).bytes(), id.into(), 400);
    let mut frames = timed((1..=40).map(|id| pieces(id).swap_remove(1)));
    let [first, later] = pieces(41).try_into().unwrap();
    frames.extend([(SECOND, later), (2 * SECOND, first), (10 * SECOND, udp(true, 5_000, 10).bytes())]);
    let (figures, sent) = folder.replay(&frames, &[]);
    assert_eq!(figures["drops"], serde_json::json!({ "fragment_timeout": 40 }));
    assert_eq!((&figures["held"], sent.len()), (&0.into(), 3), "{figures}");
    frames.truncate(41);
    assert_eq!(folder.replay(&frames, &[]).0["held"], 41);
}

#[test]
fn large_packets_are_fragmented_or_answered_within_limits() {
    let folder = Folder::new();
    let (figures, sent) = folder.replay(&timed([may_be_cut(udp(true, 5_000, 1_472).bytes())]), &[]);
    assert_eq!((&figures["fragmented"], &figures["originated"]), (&1.into(), &1.into()), "{figures}");
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|piece| piece.len() <= 1_514 && Frame::parse(piece).unwrap().outer().is_some()));
    let (figures, _) =
        folder.replay(&timed([may_be_cut(udp(true, 5_000, 1_472).bytes())]), &["--mtu", "1600"]);
    assert_eq!((&figures["sent"], &figures["originated"]), (&1.into(), &0.into()), "{figures}");
    // The first 150 packets have the DF flag. At most 100 errors per second are sent to one source,
    // so the packet two seconds later causes another error.
    let mut frames: Vec<_> = (0..150).map(|n| (0, udp(true, 6_000 + n, 1_472).bytes())).collect();
    frames.push((2 * SECOND, udp(true, 7_000, 1_472).bytes()));
    let (figures, _) = folder.replay(&frames, &[]);
    assert_eq!((&figures["replied"], &figures["drops"]["too_big"]), (&101.into(), &50.into()), "{figures}");
}

#[test]
fn tags_follow_the_rules_of_the_interface_that_frames_leave_by() {
    let folder = Folder::new();
    folder.config("a.toml", "b1", "[machine.lb1.vlan.eth0]\npolicy = \"strip\"\n");
    let tagged = FrameSpec { vlans: vec![7], ..udp(true, 5_000, 10) }.bytes();
    for (interface, expected) in [("eth0", vec![]), ("eth1", vec![7])] {
        let (_, sent) = folder.replay(&timed([tagged.clone()]), &["--interface", interface]);
        assert_eq!(Frame::parse(&sent[0]).unwrap().vlans, expected, "{interface}");
    }
    let refused = folder.run(&["--interface", "eth7"]);
    assert!(
        String::from_utf8_lossy(&refused.stdout).contains("no interface eth7 (its interfaces: eth0, eth1)")
    );
}

#[test]
fn icmp_error_to_machine_address_lowers_path_mtu() {
    let folder = Folder::new();
    let packet = || may_be_cut(udp(true, 5_000, 1_372).bytes());
    let (_, sent) = folder.replay(&timed([packet()]), &[]);
    let quoted = sent[0][14..14 + 64].to_vec();
    let own = "192.0.2.1:0".parse().unwrap();
    let mut error = FrameSpec::udp(ROUTER, OWN, "198.51.100.1:0".parse().unwrap(), own);
    (error.icmp, error.payload) = (Some([3, 4]), quoted);
    let mut error = error.bytes();
    error[40..42].copy_from_slice(&1_300_u16.to_be_bytes());
    // The checksum is updated incrementally (RFC 1624).
    let sum = u32::from(!u16::from_be_bytes([error[36], error[37]])) + 1_300;
    let sum = !u16::try_from(sum % 0xffff).unwrap();
    error[36..38].copy_from_slice(&sum.to_be_bytes());
    let ping = FrameSpec { icmp: Some([8, 0]), ..FrameSpec::udp(ROUTER, OWN, client(true, 0), own) };
    let (figures, _) = folder.replay(&timed([packet(), error, packet(), ping.bytes()]), &[]);
    assert_eq!((&figures["passed"], &figures["received"]), (&1.into(), &3.into()), "{figures}");
    assert_eq!((&figures["fragmented"], &figures["sent"]), (&1.into(), &3.into()), "{figures}");
}

#[test]
fn of_a_prefix_the_kernel_keeps_the_machines_own_addresses() {
    let folder = Folder::new();
    let group = "[prefix_group.g]\nprefixes = [\"192.0.2.0/27\"]\n[vip.all]\ngroup = \"g\"\nsuffixes = [\"0.0.0.0/0\"]\n\
                 services = [{ ports = [53], protocol = \"udp\", pool = \"web\" }]\n";
    folder.config("a.toml", "b1", group);
    let to =
        |address: &str| FrameSpec { destination: address.parse().unwrap(), ..udp(true, 5_000, 10) }.bytes();
    let (figures, sent) = folder.replay(&timed(["192.0.2.1:53", "192.0.2.2:53"].map(to)), &[]);
    assert_eq!((&figures["passed"], sent.len()), (&1.into(), 1), "{figures}");
}

#[test]
fn reload_keeps_flows_and_fragments_and_moves_new_flows() {
    let folder = Folder::new();
    folder.config("b.toml", "b2", "");
    let [first, later] = cut(&udp(true, 4_000, 600).bytes(), 9, 400).try_into().unwrap();
    let frames = [
        (0, udp(true, 5_000, 10).bytes()),
        (SECOND, later),
        (2 * SECOND, udp(true, 5_000, 10).bytes()),
        (2 * SECOND, udp(true, 5_001, 10).bytes()),
        (2 * SECOND, first),
    ];
    let (_, sent) = folder.replay(&frames, &[]);
    assert!(sent.len() == 5 && sent.iter().all(|sent| backend(sent) == "198.18.1.1"));
    for at in ["1500ms=b.toml", "3=b.toml"] {
        let (figures, sent) = folder.replay(&frames, &["--reload", at]);
        let to: Vec<String> = sent.iter().map(|sent| backend(sent)).collect();
        let b = |n: u8| format!("198.18.1.{n}");
        assert_eq!(to, [b(1), b(1), b(2), b(2), b(2)], "{at}: {figures}");
        assert_eq!(figures["reloads"], 1);
    }
    // The drain time elapses on the clock of the capture, and the flow moves to the new backend.
    let late = [(0, udp(true, 5_000, 10).bytes()), (7_200 * SECOND, udp(true, 5_000, 10).bytes())];
    let (_, sent) = folder.replay(&late, &["--reload", "1s=b.toml"]);
    assert_eq!([backend(&sent[0]), backend(&sent[1])], ["198.18.1.1", "198.18.1.2"]);
    let (figures, _) = folder.replay(&late, &["--reload", "3h=b.toml"]);
    assert_eq!(figures["reloads"], 0);
    assert!(!folder.run(&["--reload", "1s=none.toml"]).status.success());
}

// Promise: replay-fidelity
#[test]
fn a_capture_of_the_balancers_own_is_replayed_as_what_came_in() {
    let folder = Folder::new();
    let [first, later] = cut(&udp(false, 4_000, 600).bytes(), 9, 400).try_into().unwrap();
    let whole = may_be_cut(udp(true, 5_000, 1_472).bytes());
    let arrivals = [later, whole, first];
    let (expected, sent) = folder.replay(&timed(arrivals.clone()), &[]);
    let interface = |name| Interface { name, description: "" };
    let mut file = Vec::new();
    pcapng::begin(&mut file, "capture", &[interface("before"), interface("after")], 2_048);
    let mut write = |n: u64, frame: &[u8], outbound: bool, comment: &str| {
        let (nanos, kept) = (1_700_000_000_000_000_000 + n * 1_000_000, frame.len().min(600));
        let (bytes, interface) = (&frame[..kept], u32::from(outbound));
        pcapng::packet(
            &mut file,
            &Packet { interface, nanos, bytes, whole: frame.len(), id: n, outbound, comment },
        );
    };
    write(0, &arrivals[0], false, "verdict=hold thread=0");
    write(1, &arrivals[1], false, "verdict=to_thread to=1 thread=0");
    write(1, &arrivals[1], false, "verdict=hold backend=\"b1\" thread=1");
    write(2, &arrivals[2], false, "verdict=tx thread=0");
    write(2, &sent[2], true, "verdict=tx thread=0");
    write(2, &arrivals[0], false, "verdict=tx thread=0");
    write(2, &sent[3], true, "verdict=tx thread=0");
    pcapng::statistics(&mut file, 0, &pcapng::Statistics::default());
    fs::write(folder.0.join("in"), file).unwrap();
    let (figures, again) = folder.replayed(&[]);
    assert_eq!((&figures["read"], &figures["left_out"]), (&7.into(), &4.into()), "{figures}");
    assert_eq!(
        (&figures["cut_short"], &figures["received"]),
        (&1.into(), &expected["received"]),
        "{figures}"
    );
    // The comparison covers the Ethernet, outer IPv4, GRE and inner IPv4 headers. Truncated bytes
    // are zeros.
    let heads = |frames: &[Vec<u8>]| frames.iter().map(|frame| frame[..58].to_vec()).collect::<Vec<_>>();
    assert_eq!(heads(&again), heads(&sent), "{expected} {figures}");
}

/// Generates damaged frames, and frames that lead to all verdicts.
fn any_frames() -> impl Strategy<Value = Vec<(u64, Vec<u8>)>> {
    let one = (
        any::<bool>(),
        0..8_u8,
        0..4_u16,
        0..1_500_usize,
        any::<prop::sample::Index>(),
        any::<u8>(),
        0..900_u64,
    );
    prop::collection::vec(one, 1..60).prop_map(|specs| {
        let mut time = 0;
        let frames = specs.into_iter().map(|(is_v4, kind, port, bytes, at, value, pause)| {
            time += pause * 1_000;
            let spec = udp(is_v4, 4_000 + port, bytes.min(if kind == 6 { 1_472 } else { 1_440 }));
            let bytes = match kind {
                0 => cut(&spec.bytes(), port.into(), 400).pop().unwrap(),
                1 => cut(&spec.bytes(), port.into(), 400).swap_remove(0),
                2 => FrameSpec { ttl: 1, ..spec }.bytes(),
                3 => FrameSpec { destination: vip(is_v4, 54), ..spec }.bytes(),
                4 => FrameSpec { icmp: Some([if is_v4 { 8 } else { 128 }, 0]), ..spec }.bytes(),
                5 if is_v4 => may_be_cut(FrameSpec { payload: vec![1; 1_472], ..spec }.bytes()),
                6 => {
                    let mut damaged = spec.bytes();
                    let at = at.index(damaged.len());
                    damaged[at] = value;
                    damaged
                }
                _ => spec.bytes(),
            };
            (time, bytes)
        });
        frames.collect()
    })
}

// Promise: replay-fidelity
#[test]
fn the_figures_of_any_capture_balance() {
    let folder = Folder::new();
    let config = ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() };
    folder.config("b.toml", "b2", "");
    proptest!(config, |(frames in any_frames(), before in 1..80_u16)| {
        let (figures, _) = folder.replay(&frames, &["--mtu", "1400", "--reload", &format!("{before}=b.toml")]);
        prop_assert_eq!(&figures["read"], frames.len());
    });
}
