//! Tests of `sluicegate replay`, which runs the packets of a capture file through the forwarder
//! without a network.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use testbed::{Bed, BedSpec, Encapsulation, Frame, FrameSpec, LbConfig, read_pcap, write_pcap};

use crate::scene::{backend_of, verb};

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Returns a testbed, because the configuration fixture needs one. The tests use no network.
fn bed() -> Bed {
    Bed::new(&BedSpec::default()).unwrap()
}

fn frame(bed: &Bed, ipv4: bool, client_port: u16, port: u16) -> FrameSpec {
    let client: std::net::IpAddr = if ipv4 { bed.client.v4.into() } else { bed.client.v6.into() };
    FrameSpec::smallest_udp(ROUTER, OWN, (client, client_port).into(), bed.vip(ipv4, port))
}

#[test]
fn replay_agrees_with_where() {
    let bed = bed();
    let (input, output) = (bed.dir().join("in.pcap"), bed.dir().join("out.pcap"));
    for kind in [Encapsulation::Gre, Encapsulation::Gue] {
        let config = LbConfig::new(&bed).encapsulation(kind).weights(&[1, 2, 3]);
        let file = config.write(&bed, 0).unwrap();
        let mut specs = Vec::new();
        for n in 0..12 {
            let mut udp = frame(&bed, n % 2 == 0, 5000 + n, Bed::ECHO_PORT);
            udp.vlans = [vec![], vec![7], vec![100, 7]][usize::from(n) % 3].clone();
            let mut tcp = frame(&bed, n % 2 == 0, 6000 + n, Bed::HTTP_PORT);
            tcp.tcp_flags = Some(0x02);
            specs.extend([udp, tcp]);
        }
        let mut frames: Vec<Vec<u8>> = specs.iter().map(FrameSpec::bytes).collect();
        // None of these frames can be forwarded: no VIP, no service, expired TTL, truncated packet,
        // no IP packet.
        let mut elsewhere = frame(&bed, true, 7000, 53);
        elsewhere.destination = (bed.backends[0].v4, 53).into();
        let mut last_hop = frame(&bed, true, 7000, 53);
        last_hop.ttl = 1;
        frames.extend([elsewhere.bytes(), frame(&bed, true, 7000, 54).bytes(), last_hop.bytes()]);
        frames.extend([frames[0][..20].to_vec(), [&OWN[..], &ROUTER, &[0x08, 0x06], &[0; 46]].concat()]);
        write_pcap(&input, &frames).unwrap();
        let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        let (from, to, file_path) = (path(&input), path(&output), path(&file));
        let ended = verb(&bed, &["replay", &from, &to, "--config", &file_path, "--json"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let figures: Value = serde_json::from_str(&ended.out).unwrap();
        let drops = serde_json::json!({"no_vip": 1});
        assert_eq!((&figures["read"], &figures["written"]), (&29.into(), &25.into()), "{figures}");
        assert_eq!((&figures["passed"], &figures["drops"]), (&3.into(), &drops), "{figures}");
        let mut written = read_pcap(&output).unwrap();
        let exceeded = written.pop().unwrap();
        assert_eq!(exceeded[34..36], [11, 0], "the reply is not an ICMP time exceeded error");
        assert_eq!(written.len(), specs.len());
        for (bytes, spec) in written.iter().zip(&specs) {
            let (frame, original) = (Frame::parse(bytes).unwrap(), Frame::parse(&spec.bytes()).unwrap());
            let outer = frame.outer().unwrap();
            assert_eq!((frame.to, frame.from, &frame.vlans), (ROUTER, OWN, &spec.vlans));
            assert_eq!((outer.inner.ports(), outer.inner.ttl), (original.ip.ports(), 63));
            let protocol = if spec.tcp_flags.is_some() { "tcp" } else { "udp" };
            let backend = backend_of(&bed, &file, spec.source, spec.destination, protocol);
            let address = bed.backends.iter().find(|host| host.name == backend).unwrap().v4;
            assert_eq!(outer.outer.destination, std::net::IpAddr::from(address), "{spec:?}");
        }
    }
}

#[test]
fn replay_rejects_invalid_capture_files() {
    let bed = bed();
    let file = LbConfig::new(&bed).write(&bed, 0).unwrap();
    let (input, output) = (bed.dir().join("in.pcap"), bed.dir().join("out.pcap"));
    let whole = |frames: &[Vec<u8>]| {
        write_pcap(&input, frames).unwrap();
        fs::read(&input).unwrap()
    };
    let good = whole(&[frame(&bed, true, 5000, 53).bytes()]);
    let mut not_ethernet = good.clone();
    not_ethernet[20] = 101; // link type raw IP
    for (what, bytes) in [
        ("empty", vec![]),
        ("text", b"this is no capture at all, but it is long enough".to_vec()),
        ("cut in the header", good[..20].to_vec()),
        ("cut in a frame", good[..good.len() - 5].to_vec()),
        ("not Ethernet", not_ethernet),
    ] {
        fs::write(&input, bytes).unwrap();
        let paths = [&input, &output, &file].map(|path| path.to_str().unwrap().to_owned());
        let ended = verb(&bed, &["replay", &paths[0], &paths[1], "--config", &paths[2]]);
        assert_eq!(ended.code, Some(1), "{what}: {ended:?}");
        assert!(ended.err.contains("in.pcap") && !ended.err.contains("panicked"), "{what}: {}", ended.err);
        println!("{what}: {}", ended.err.trim());
    }
    let missing =
        verb(&bed, &["replay", "/nonexistent.pcap", "/tmp/never", "--config", file.to_str().unwrap()]);
    assert!(missing.code == Some(1) && missing.err.contains("/nonexistent.pcap"), "{missing:?}");
}

#[test]
fn an_empty_capture_gives_an_empty_one() {
    let bed = bed();
    let file = LbConfig::new(&bed).write(&bed, 0).unwrap();
    let (input, output) = (bed.dir().join("in.pcap"), bed.dir().join("out.pcap"));
    write_pcap(&input, &[]).unwrap();
    let paths = [&input, &output, &file].map(|path| path.to_str().unwrap().to_owned());
    let ended = verb(&bed, &["replay", &paths[0], &paths[1], "--config", &paths[2]]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(read_pcap(&output).unwrap().is_empty());
}

#[test]
fn closed_pipe_is_ignored_and_full_disk_is_reported() {
    let bed = bed();
    let file = LbConfig::new(&bed).write(&bed, 0).unwrap();
    let check = |to: Stdio| {
        let mut verb = Command::new(bed.program().unwrap());
        let output = verb.args(["config", "check"]).arg(&file).stdout(to).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(check(writer.into()), (Some(0), String::new()));
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let (code, words) = check(full.into());
    assert!(code == Some(1) && words.contains("cannot write to standard output"), "{code:?} {words}");
    assert_eq!(words.lines().count(), 1, "{words}");
}
