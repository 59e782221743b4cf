//! Tests of `sluicegate doctor` on hosts with real faults. Each test applies the fix that `doctor`
//! prints.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testbed::{Balancer, Bed, BedSpec, Ended, LbConfig, Process};

use crate::scene::{BOUND, verb};

/// A host and the configuration file for it, both of which `doctor` checks. No balancer runs on the
/// host.
struct Patient {
    bed: Bed,
    file: PathBuf,
}

impl Patient {
    fn with(spec: &BedSpec, config: impl FnOnce(&Bed) -> LbConfig) -> Self {
        let bed = Bed::new(spec).unwrap();
        let file = config(&bed).write(&bed, 0).unwrap();
        Self { bed, file }
    }

    fn new() -> Self {
        Self::with(&BedSpec { backends: 2, ..BedSpec::default() }, LbConfig::new)
    }

    fn ended(&self) -> Ended {
        verb(&self.bed, &["doctor", "--json", "--machine", "lb1", "--config", self.file.to_str().unwrap()])
    }

    fn findings(&self) -> Vec<Value> {
        findings(&self.ended())
    }

    fn finding(&self, id: &str) -> Option<Value> {
        self.findings().into_iter().find(|finding| finding["id"] == id)
    }

    /// Returns the finding with this `id`. Panics unless the finding has this level and its text
    /// contains `words`.
    fn found(&self, id: &str, level: &str, words: &str) -> Value {
        let ended = self.ended();
        let finding = findings(&ended).into_iter().find(|finding| finding["id"] == id);
        let finding = finding.unwrap_or_else(|| panic!("no {id} in {}", ended.out));
        assert_eq!(finding["level"], level, "{finding:#}");
        assert!(finding["what"].as_str().unwrap().contains(words), "{finding:#}");
        assert!(level != "error" || ended.code == Some(1), "an error must exit with status 1, {ended:?}");
        finding
    }

    fn shell(&self, command: &str) {
        let ended = Process::to_end(&self.bed.balancers[0].ns, "sh", &["-ec", command], BOUND).unwrap();
        assert_eq!(ended.code, Some(0), "{command}: {ended:?}");
    }

    /// Checks that the finding does not exist, runs the command `fault`, checks that the finding
    /// now exists, runs the command that `doctor` suggests, and checks that the finding is gone.
    fn heals(&self, fault: &str, id: &str, level: &str, words: &str) {
        assert_eq!(self.finding(id), None, "the finding exists before `{fault}`");
        self.shell(fault);
        let finding = self.found(id, level, words);
        let command = finding["command"].as_str().unwrap();
        println!("{fault}\n  {id}: {}\n  fixed by: {command}", finding["what"]);
        self.shell(command);
        assert_eq!(self.finding(id), None, "after: {command}");
    }
}

fn findings(ended: &Ended) -> Vec<Value> {
    let said: Value = serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    assert_eq!(said["schema"], 1);
    said["findings"].as_array().unwrap().clone()
}

#[test]
fn doctor_finds_each_fault_and_its_command_fixes_it() {
    let patient = Patient::new();
    let well = patient.ended();
    let errors: Vec<_> = findings(&well).into_iter().filter(|finding| finding["level"] == "error").collect();
    assert_eq!((well.code, errors), (Some(0), vec![]), "{}", well.out);
    for (fault, id, level, words) in [
        ("sysctl -w net.ipv4.conf.all.rp_filter=1", "rp-filter", "warning", "strict on lb0"),
        ("sysctl -w net.ipv4.conf.lb0.rp_filter=1", "rp-filter", "warning", "strict on lb0"),
        ("ip address add 203.0.113.10/32 dev lo", "local-vip", "error", "lo has 203.0.113.10/32"),
        ("ip address add 203.0.113.1/24 dev lo", "local-vip", "error", "lo has 203.0.113.1/24"),
        ("ip address add 2001:db8:f::10/128 dev lo nodad", "local-vip", "error", "lo has 2001:db8:f::10/128"),
        (
            "sysctl -w net.ipv4.ip_forward=1",
            "forwarding-loop",
            "error",
            "forwards IPv4 packets that arrive on lb0",
        ),
        ("sysctl -w net.ipv6.conf.all.forwarding=1", "forwarding-loop", "error", "forwards IPv6"),
        ("ip link set lb0 mtu 1500", "mtu-link", "warning", "MTU of lb0 is 1500 bytes"),
        ("ip link set lb0 mtu 1523", "mtu-link", "warning", "need 1524"),
        ("ethtool -K lb0 rx-gro-list on", "coalescing", "warning", "rx-gro-list on"),
        ("ethtool -K lb0 tx on", "partial-checksum", "warning", "tx checksum offload on"),
        (
            "ip address del 192.0.2.1/31 dev lb0; ip address add 192.0.2.5/31 dev lb0",
            "own-address",
            "warning",
            "192.0.2.1",
        ),
    ] {
        patient.heals(fault, id, level, words);
    }
}

#[test]
fn doctor_checks_packet_sockets_without_xdp() {
    let spec = BedSpec { queues: 2, backends: 2, ..BedSpec::default() };
    let patient = Patient::with(&spec, |bed| {
        let io = "mode = \"af-packet\"\nqueues = 1".to_owned();
        LbConfig { io, ..LbConfig::new(bed) }
    });
    let well = patient.ended();
    let errors: Vec<_> = findings(&well).into_iter().filter(|finding| finding["level"] == "error").collect();
    assert_eq!((well.code, errors), (Some(0), vec![]), "{}", well.out);
    patient.heals("ethtool -K lb0 gro on", "coalescing", "error", "GRO on");
}

#[test]
fn rp_filter_that_drops_replies_from_the_vip_is_an_error() {
    let patient = Patient::new();
    patient.shell("ip route add blackhole 203.0.113.10/32");
    patient.heals("sysctl -w net.ipv4.conf.lb0.rp_filter=1", "rp-filter", "error", "uses another interface");
    patient.heals("sysctl -w net.ipv4.conf.lb0.rp_filter=2", "rp-filter", "error", "loose on lb0");
}

#[test]
fn doctor_finds_queue_without_socket() {
    let spec = BedSpec { queues: 2, backends: 1, ..BedSpec::default() };
    let patient = Patient::with(&spec, |bed| {
        let mut config = LbConfig::new(bed);
        config.io = "queues = 1".to_owned();
        config
    });
    let finding = patient.found("queue-without-socket", "error", "queues 1, which have no socket");
    patient.shell(finding["command"].as_str().unwrap());
    assert_eq!(patient.finding("queue-without-socket"), None);
}

#[test]
fn path_mtu_is_measured_to_the_byte() {
    let patient = Patient::new();
    let router = &patient.bed.router;
    assert_eq!(patient.finding("mtu-path"), None);
    router.ip("link set to-b1 mtu 1511").unwrap();
    patient.found(
        "mtu-path",
        "error",
        "larger than 1511 bytes do not reach backend b1 (198.18.1.1), but 1524",
    );
    router.ip("link set to-b1 mtu 1600").unwrap();
    assert_eq!(patient.finding("mtu-path"), None);
    // The kernel has cached the path MTU that the router reported.
    let believed = patient.found("mtu-route", "warning", "has an MTU of 1511 bytes");
    patient.shell(believed["command"].as_str().unwrap());
    assert_eq!(patient.finding("mtu-route"), None);
}

#[test]
fn unreachable_and_silent_backends_are_distinguished() {
    let patient = Patient::new();
    patient.shell("ip route add unreachable 198.18.1.1/32");
    patient.found("no-next-hop", "error", "cannot send to backend b1 (198.18.1.1)");
    patient.shell("ip route del unreachable 198.18.1.1/32");
    assert_eq!(patient.finding("no-next-hop"), None);
    patient.bed.backends[1].ns.ip("link set eth0 down").unwrap();
    patient.found("no-answer", "warning", "no answer to pings from backend b2 (198.18.1.2)");
    assert_eq!(patient.finding("no-next-hop"), None, "the next hop of the backend is missing");
}

/// Returns a host with a BGP router on its link. `more` contains additional configuration lines for
/// the peer.
fn with_peer(more: &str) -> Patient {
    Patient::with(&BedSpec { backends: 1, ..BedSpec::default() }, |bed| LbConfig {
        vip_keys: "announce = {}".into(),
        more: format!(
            "[bgp]\nasn = 65101\nlisten = [\"192.0.2.1:179\"]\n[[bgp.peers]]\naddress = \"192.0.2.0\"\nasn = 65000\n\
             next_hop6 = \"2001:db8:0:1::1\"\nsource = \"192.0.2.1\"\n{more}\n"
        ),
        ..LbConfig::new(bed)
    })
}

#[test]
fn doctor_checks_the_requirements_of_bgp() {
    let patient = with_peer("hops = 1\nbfd = {}\npassword_file = \"hash.key\"");
    let of_bgp = |patient: &Patient| {
        let found = patient.findings().into_iter();
        let of_it = |id: &str| id.starts_with("bgp") || id.starts_with("bfd") || id == "config";
        found.filter(|finding| of_it(finding["id"].as_str().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(of_bgp(&patient), Vec::<Value>::new());
    let move_away = "ip address del 192.0.2.1/31 dev lb0; ip address add 192.0.2.5/31 dev lb0";
    patient.heals(move_away, "bgp-source", "error", "no local interface has the source address 192.0.2.1");
    patient.shell("ip address del 192.0.2.1/32 dev lb0");
    patient.found("bgp-listen", "error", "which no local interface has");
    patient.shell("ip address del 192.0.2.5/31 dev lb0; ip address add 192.0.2.1/31 dev lb0");
    patient.shell("ip route add unreachable 192.0.2.0/32 metric 1");
    patient.found("bgp-no-route", "error", "cannot send to BGP peer 192.0.2.0");
    patient.shell("ip route del unreachable 192.0.2.0/32 metric 1");
    let ns = &patient.bed.balancers[0].ns;
    let other = ns.run(|| TcpListener::bind("192.0.2.1:179")).unwrap();
    patient.found("bgp-listen", "error", "192.0.2.1:179, which another program uses");
    drop(other);
    let other = ns.run(|| UdpSocket::bind("0.0.0.0:3784")).unwrap();
    patient.found("bfd-port", "error", "another program uses");
    drop(other);
    assert_eq!(of_bgp(&patient), Vec::<Value>::new());
    // The router is not on the link, but the session is configured with `hops = 1`.
    let far = patient.bed.client.v4.to_string();
    patient.shell(&format!("ip route replace {far}/32 via 192.0.2.0"));
    let text = fs::read_to_string(&patient.file).unwrap();
    fs::write(&patient.file, text.replace("address = \"192.0.2.0\"", &format!("address = \"{far}\"")))
        .unwrap();
    patient.found("bgp-not-direct", "error", "has hops = 1, but its route uses the gateway 192.0.2.0");
    fs::set_permissions(patient.bed.dir().join("hash.key"), fs::Permissions::from_mode(0o640)).unwrap();
    patient.found("config", "error", "can be read by other users (mode 0640)");
}

#[test]
fn missing_privileges_are_reported() {
    let patient = Patient::new();
    patient.shell("sysctl -w 'net.ipv4.ping_group_range=1 0'");
    let program = patient.bed.program().unwrap();
    let file = patient.file.to_str().unwrap();
    let look = || {
        let args = [
            "--memlock=65536:",
            "--",
            "setpriv",
            "--bounding-set",
            "-net_raw,-net_admin,-ipc_lock",
            "--",
            program.to_str().unwrap(),
            "doctor",
            "--json",
            "--machine",
            "lb1",
            "--config",
            file,
        ];
        let ended = Process::to_end(&patient.bed.balancers[0].ns, "prlimit", &args, BOUND).unwrap();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        findings(&ended)
    };
    let found = look();
    let of = |id: &str| found.iter().filter(|finding| finding["id"] == id).collect::<Vec<_>>();
    assert_eq!(of("capability").len(), 2, "{found:#?}");
    assert!(
        of("memlock")[0]["what"]
            .as_str()
            .unwrap()
            .contains("8192 KiB, but the limit of locked memory is 64 KiB")
    );
    patient.shell(of("not-pinged")[0]["command"].as_str().unwrap());
    assert!(look().iter().all(|finding| finding["id"] != "not-pinged" && finding["id"] != "no-answer"));
}

#[test]
fn problems_of_the_configuration_are_findings() {
    let patient = Patient::new();
    let key = patient.bed.dir().join("hash.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    patient.found("config", "error", "can be read by other users (mode 0644)");
    patient.shell("ip link set lb0 mtu 1500");
    patient.found("mtu-link", "warning", "MTU of lb0 is 1500 bytes");
    patient.shell("ip link set lb0 mtu 1600");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(patient.finding("config"), None);
    let text = fs::read_to_string(&patient.file).unwrap();
    let with = |from: &str, to: &str| fs::write(&patient.file, text.replace(from, to)).unwrap();
    with("\"lb0\"", "\"nope0\"");
    patient.found("interface", "error", "nope0");
    with("lb1.sock", "none/lb1.sock");
    let folder = patient.found("admin-folder", "error", "none of the admin socket does not exist");
    patient.shell(folder["command"].as_str().unwrap());
    assert_eq!(patient.finding("admin-folder"), None);
    let usage = |args: &[&str]| verb(&patient.bed, args).code;
    assert_eq!(usage(&["doctor", "--bogus"]), Some(2));
    let file = patient.file.to_str().unwrap();
    assert_eq!(usage(&["doctor", "--machine", "lb9", "--config", file]), Some(1));
    assert_eq!(usage(&["doctor", "--config", "/nonexistent/a.toml"]), Some(1));
}

#[test]
fn run_logs_findings_and_a_running_process_is_no_fault() {
    let patient = Patient::new();
    patient.shell("sysctl -w net.ipv4.conf.lb0.rp_filter=1");
    let balancer = Balancer::start(&patient.bed, 0, &LbConfig::new(&patient.bed)).unwrap();
    let said = balancer.process.lines();
    let line = said.iter().find(|line| line.text.contains("rp_filter is strict on lb0"));
    let line = &line.unwrap_or_else(|| panic!("{}", balancer.process.tail())).text;
    assert!(line.contains("WARN") && line.contains("sysctl -w net.ipv4.conf.lb0.rp_filter=2"), "{line}");
    let ended = patient.ended();
    assert_eq!(ended.code, Some(0), "{}", ended.out);
    assert_eq!(patient.finding("xdp-occupied"), None);
    balancer.stop().unwrap();
    words_for_people(&patient.bed, &patient.file);
}

fn words_for_people(bed: &Bed, file: &Path) {
    let ended = verb(bed, &["doctor", "--machine", "lb1", "--config", file.to_str().unwrap()]);
    println!("{}", ended.out);
    assert!(ended.out.contains("warning [rp-filter] rp_filter is strict on lb0"), "{}", ended.out);
    assert!(ended.out.contains("  fix:  sysctl -w net.ipv4.conf.lb0.rp_filter=2"), "{}", ended.out);
    assert!(ended.out.contains("lb0: driver veth, "), "{}", ended.out);
}

#[test]
fn paths_to_other_machines_are_measured_at_full_size() {
    let patient = Patient::with(&BedSpec { balancers: 2, backends: 1, ..BedSpec::default() }, LbConfig::new);
    let router = &patient.bed.router;
    let other = format!("machine lb2 ({})", patient.bed.balancers[1].v4);
    assert_eq!(patient.finding("mtu-path"), None);
    router.ip("link set to-lb2 mtu 1523").unwrap();
    patient.found("mtu-path", "error", &format!("larger than 1523 bytes do not reach {other}, but 1524"));
    router.ip("link set to-lb2 mtu 1600").unwrap();
    patient.shell("ip route flush cache");
    assert_eq!(patient.finding("mtu-path"), None);
}
