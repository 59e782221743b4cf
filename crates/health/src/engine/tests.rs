//! Tests of the whole scheduler with loopback sockets.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forwarder::SlotId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::*;
use config::{
    AgentCheck, Check, CheckKind, DnsCheck, DnsRecord, ExecCheck, Payload, TcpCheck, UdpCheck, Via,
};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LONG: Duration = Duration::from_secs(20);

fn check(kind: CheckKind, timeout: Duration) -> Check {
    Check {
        name: "c".into(),
        kind,
        via: Via::Backend,
        interval: Duration::from_millis(100),
        fast_interval: Duration::from_millis(50),
        timeout,
        rise: 2,
        fall: 2,
        jitter_percent: 10,
    }
}

fn watched(check: Check, backend: &str, pools: &[&str]) -> Watched {
    let key = TargetKey { address: HERE, check: Arc::new(check), through: None };
    let pools = pools.iter().map(|pool| (*pool).into()).collect();
    Watched { key, slot: None, backend: backend.into(), pools, serving: false }
}

fn tcp(port: u16, backend: &str, pool: &str) -> Watched {
    watched(check(CheckKind::Tcp(TcpCheck { port, send: None, expect: None }), LONG), backend, &[pool])
}

/// Returns a target that never responds. `name` makes the target unique.
fn mute(port: u16, name: &str, timeout: Duration) -> Watched {
    let kind = CheckKind::Dns(DnsCheck { port, name: name.into(), record: DnsRecord::A, probe_mtu: false });
    watched(check(kind, timeout), name, &["p", "q"])
}

fn start() -> (Health, Events) {
    Health::start(|_, _| Dialer::Direct, CheckHops::default()).unwrap()
}

/// Collects events until `done` returns `true`. Returns the states by port.
async fn until(
    events: &mut Events,
    known: &mut HashMap<u16, HealthState>,
    faults: &mut Vec<bool>,
    done: impl Fn(&HashMap<u16, HealthState>, &[bool]) -> bool,
) {
    let wait = async {
        while !done(known, faults) {
            match events.recv().await.expect("the thread runs") {
                Event::LocalFailure(fault) => faults.push(fault),
                Event::Changed(changes) => {
                    for StateChange { key, state, why } in changes {
                        assert_eq!(why.is_some(), state == HealthState::Down, "{key:?}: {why:?}");
                        known.insert(key.check.kind.port(), state);
                    }
                }
                other @ (Event::Unable(_) | Event::Hops(_) | Event::Flushed(_) | Event::Advised(_)) => {
                    panic!("{other:?}")
                }
            }
        }
    };
    tokio::time::timeout(LONG, wait).await.unwrap_or_else(|_| panic!("never; {known:?} {faults:?}"));
}

/// Returns the number of sockets connected to a UDP port. The kernel returns its list in parts,
/// which can be inconsistent. The list is therefore read twice, and only sockets in both lists are
/// counted.
fn connections(port: u16) -> usize {
    let listed = || -> std::collections::HashSet<String> {
        let sockets = std::fs::read_to_string("/proc/self/net/udp").unwrap();
        let peer = format!(":{port:04X}");
        let columns = sockets.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        let connected = columns.filter(|columns| columns.get(2).is_some_and(|to| to.ends_with(&peer)));
        connected.filter_map(|columns| Some((*columns.get(9)?).to_owned())).collect()
    };
    listed().intersection(&listed()).count()
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Binds a port without listening, so that connections are refused.
fn reserved() -> (TcpSocket, u16) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(HERE, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

#[tokio::test]
async fn a_backend_that_goes_is_down_and_one_that_comes_is_up() {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let (late, other) = reserved();
    let port = listener.local_addr().unwrap().port();
    let (health, mut events) = start();
    health.watch(vec![tcp(port, "a", "p"), tcp(other, "b", "p")]);
    let (mut known, mut faults) = (HashMap::new(), Vec::new());
    until(&mut events, &mut known, &mut faults, |known, _| known.len() == 2).await;
    assert_eq!((known[&port], known[&other]), (HealthState::Up, HealthState::Down));
    drop(listener);
    let _listening = late.listen(64).unwrap();
    until(&mut events, &mut known, &mut faults, |known, _| {
        known[&port] == HealthState::Down && known[&other] == HealthState::Up
    })
    .await;
    assert!(faults.is_empty());
    let reports = health.report();
    let gone = reports.iter().find(|report| &*report.backend == "a").unwrap();
    assert_eq!((gone.state, gone.last, gone.last_reason), (HealthState::Down, Some(false), Some("refused")));
    assert!(gone.fails >= 2 && gone.failures >= 2 && gone.attempts > gone.failures);
    assert_eq!(gone.last_error.as_deref(), Some("connection refused"));
    assert!(gone.last_error_at.is_some());
    drop(health);
    while events.recv().await.is_some() {}
}

#[tokio::test]
async fn when_all_fail_it_is_this_machine_until_one_passes() {
    let sockets: Vec<(TcpSocket, u16)> = (0..4).map(|_| reserved()).collect();
    let set = sockets.iter().zip(["p", "p", "q", "q"]).enumerate();
    let (health, mut events) = start();
    health.watch(set.map(|(n, ((_, port), pool))| tcp(*port, &format!("b{n}"), pool)).collect());
    let (mut known, mut faults) = (HashMap::new(), Vec::new());
    until(&mut events, &mut known, &mut faults, |_, faults| faults == [true]).await;
    assert!(known.is_empty(), "{known:?}");
    let mut sockets = sockets.into_iter();
    let (first, port) = sockets.next().unwrap();
    let _listening = first.listen(64).unwrap();
    until(&mut events, &mut known, &mut faults, |known, faults| known.len() == 4 && faults == [true, false])
        .await;
    assert_eq!(known[&port], HealthState::Up);
    assert!(sockets.all(|(_, port)| known[&port] == HealthState::Down));
}

/// A program that passes without the network does not end the silence of an isolated machine.
#[tokio::test]
async fn passing_program_does_not_prevent_a_local_failure() {
    let path = std::env::temp_dir().join(format!("sluicegate-engine-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let runner = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4_096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(b"passed\n").await;
        }
    });
    let exec =
        ExecCheck { program: "c".into(), arguments: vec![], port: Some(1), socket: path.as_path().into() };
    let sockets: Vec<(TcpSocket, u16)> = (0..4).map(|_| reserved()).collect();
    let set = sockets.iter().zip(["p", "p", "q", "q"]).enumerate();
    let set = set.map(|(n, ((_, port), pool))| tcp(*port, &format!("b{n}"), pool));
    let program = watched(check(CheckKind::Exec(exec), LONG), "x", &["p"]);
    let (health, mut events) = start();
    health.watch(set.chain([program]).collect());
    let (mut known, mut faults) = (HashMap::new(), Vec::new());
    until(&mut events, &mut known, &mut faults, |_, faults| faults == [true]).await;
    assert!(known.iter().all(|(port, state)| (*port, *state) == (1, HealthState::Up)), "{known:?}");
    runner.abort();
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn held_state_waits_only_for_a_confirmation_probe() {
    let listeners: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind((HERE, 0)).unwrap()).collect();
    let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    // The regular attempts of the other targets are an hour away.
    let slow = |port, backend: &str, pool: &str| {
        let mut watched = tcp(port, backend, pool);
        let mut check = (*watched.key.check).clone();
        (check.interval, check.jitter_percent) = (Duration::from_secs(3_600), 0);
        watched.key.check = Arc::new(check);
        watched
    };
    let (health, mut events) = start();
    health.watch(vec![tcp(ports[0], "a", "p"), slow(ports[1], "b", "p"), slow(ports[2], "c", "q")]);
    let (mut known, mut faults) = (HashMap::new(), Vec::new());
    until(&mut events, &mut known, &mut faults, |known, _| known.len() == 3).await;
    let mut listeners = listeners.into_iter();
    drop(listeners.next());
    until(&mut events, &mut known, &mut faults, |known, _| known[&ports[0]] == HealthState::Down).await;
    assert!(faults.is_empty());
}

#[test]
fn thousand_set_changes_leak_no_descriptor() {
    let server = UdpSocket::bind((HERE, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let (health, mut events) = start();
    let set = |from: usize| -> Vec<Watched> {
        (from..from + 60).map(|n| mute(port, &format!("n{n}.example.net"), LONG)).collect()
    };
    health.watch(set(0));
    eventually("all targets are probed", || connections(port) == 60);
    for n in 0..1_000 {
        health.watch(set(n % 7 * 30));
        if n % 50 == 0 {
            assert_eq!(health.report().len(), 60, "the report has all earlier changes");
        }
    }
    eventually("only targets of the last set are probed", || connections(port) == 60);
    health.watch(Vec::new());
    eventually("no target is probed", || connections(port) == 0);
    assert!(health.report().is_empty());
    assert!(events.try_recv().is_none());
    health.watch(set(0));
    eventually("all targets are probed", || connections(port) == 60);
    drop(health);
    assert_eq!(connections(port), 0, "dropping the handle ends every attempt");
}

#[test]
fn many_targets_at_once_are_asked_one_after_the_other() {
    const MANY: u32 = 30_000;
    let (_nobody, port) = reserved();
    let (health, _events) = start();
    let target = |number: u32| {
        let address = IpAddr::V4(Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + 256 + number));
        let check = Check {
            interval: LONG,
            ..check(CheckKind::Tcp(TcpCheck { port, send: None, expect: None }), LONG)
        };
        let key = TargetKey { address, check: Arc::new(check), through: None };
        Watched {
            key,
            slot: None,
            backend: address.to_string().into(),
            pools: vec!["p".into()],
            serving: false,
        }
    };
    let targets = (0..MANY).map(target).collect();
    let start = Instant::now();
    health.watch(targets);
    eventually("all targets are probed", || {
        health.report().iter().filter(|report| report.attempts > 0).count() == MANY as usize
    });
    // First attempts start at a rate of 20,000 per second, so that older targets are still probed
    // in time.
    assert!(start.elapsed() >= Duration::from_millis(1_499), "{:?}", start.elapsed());
}

#[test]
fn attempts_under_way_are_limited_and_all_get_their_turn() {
    let server = UdpSocket::bind((HERE, 0)).unwrap();
    server.set_read_timeout(Some(LONG)).unwrap();
    let port = server.local_addr().unwrap().port();
    let (health, _events) =
        Health::start_with(Box::new(|_, _| Dialer::Direct), CheckHops::default(), 4).unwrap();
    let timeout = Duration::from_millis(20);
    health.watch((0..40).map(|n| mute(port, &format!("n{n}.example.net"), timeout)).collect());
    let mut most = 0;
    let mut seen = std::collections::HashSet::new();
    let mut question = [0; 512];
    while seen.len() < 40 {
        let len = server.recv(&mut question).expect("all attempts run eventually");
        seen.insert(question[12..len].to_vec()); // The ID differs in each query, so it is skipped.
        most = most.max(connections(port));
    }
    assert!((1..=4).contains(&most), "{most} at once");
}

#[test]
fn slot_change_restarts_the_attempt() {
    let server = UdpSocket::bind((HERE, 0)).unwrap();
    server.set_read_timeout(Some(LONG)).unwrap();
    let port = server.local_addr().unwrap().port();
    let (health, _events) = start();
    let mut target = mute(port, "n.example.net", 10 * LONG);
    let mut question = [0; 512];
    let (mut first, mut second) = (None, None);
    for (slot, from) in [(Some(SlotId(1)), &mut first), (Some(SlotId(2)), &mut second)] {
        target.slot = slot;
        health.watch(vec![target.clone()]);
        *from = Some(server.recv_from(&mut question).expect("one query per slot").1);
    }
    assert_ne!(first, second);
    assert_eq!(connections(port), 1);
    let report = health.report();
    assert_eq!((report.len(), report[0].attempts, report[0].state), (1, 0, HealthState::Unknown));
}

#[test]
fn what_stays_keeps_its_past_and_what_comes_back_does_not() {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (health, _events) = start();
    let mut target = tcp(port, "a", "p");
    let mut patient = (*target.key.check).clone();
    // The second attempt starts so late that the next report is made first.
    (patient.fast_interval, patient.interval) = (Duration::from_secs(2), Duration::from_secs(2));
    target.key.check = Arc::new(patient);
    health.watch(vec![target.clone()]);
    eventually("the target is up", || health.report().iter().any(|report| report.attempts >= 2));
    let mut renamed = target.clone();
    let mut check = (*target.key.check).clone();
    check.name = "another".into();
    (renamed.key.check, renamed.pools) = (Arc::new(check), vec!["q".into(), "p".into()]);
    health.watch(vec![renamed]);
    // A report may still show the state before the change.
    let pools = ["p".into(), "q".into()];
    eventually("the target is in both pools", || health.report().iter().any(|report| report.pools == pools));
    let report = &health.report()[0];
    assert!(report.attempts >= 2 && report.state == HealthState::Up);
    health.watch(Vec::new());
    eventually("the target is gone", || health.report().is_empty());
    health.watch(vec![target]);
    eventually("the target is back", || !health.report().is_empty());
    assert!(health.report()[0].attempts < 2);
}

#[tokio::test]
async fn changed_interval_keeps_the_health_state() {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let (late, other) = reserved();
    let port = listener.local_addr().unwrap().port();
    let (health, mut events) = start();
    let at = |port, backend: &str, fall| {
        let pace = Check {
            fall,
            rise: fall,
            ..check(CheckKind::Tcp(TcpCheck { port, send: None, expect: None }), LONG)
        };
        watched(pace, backend, &["p"])
    };
    health.watch(vec![at(port, "a", 2), at(other, "b", 2)]);
    let (mut known, mut faults) = (HashMap::new(), Vec::new());
    until(&mut events, &mut known, &mut faults, |known, _| known.len() == 2).await;
    assert_eq!((known[&port], known[&other]), (HealthState::Up, HealthState::Down));
    // Both backends have changed. If the targets were new, a single result would change both
    // states.
    drop(listener);
    let _listening = late.listen(64).unwrap();
    known.clear();
    let before = health.report().iter().map(|report| report.attempts).max().unwrap();
    health.watch(vec![at(port, "a", 5), at(other, "b", 5)]);
    until(&mut events, &mut known, &mut faults, |known, _| known.len() == 2).await;
    assert_eq!(
        (known[&port], known[&other]),
        (HealthState::Up, HealthState::Down),
        "published under the new key"
    );
    until(&mut events, &mut known, &mut faults, |known, _| {
        known[&port] == HealthState::Down && known[&other] == HealthState::Up
    })
    .await;
    let reports = health.report();
    assert_eq!(reports.len(), 2);
    for report in reports {
        assert_eq!(report.key.check.fall, 5);
        assert!(report.fails >= 5 || report.passes >= 5, "{report:?}");
        assert!(report.attempts > before, "the history is kept: {report:?}");
    }
}

#[test]
fn a_reader_that_sleeps_gets_the_latest_alone() {
    let exchange = Arc::new(Exchange::default());
    let mut events = Events(Arc::clone(&exchange));
    let key = tcp(1, "a", "p").key;
    let turned = |state| StateChange { key: key.clone(), state, why: None };
    for n in 0..1_001 {
        let state = if n % 2 == 0 { HealthState::Up } else { HealthState::Down };
        let none = (std::iter::empty(), std::iter::empty());
        exchange.publish(std::iter::once((7, turned(state))), Some(n % 2 == 0), none.0, none.1);
    }
    assert!(matches!(events.try_recv(), Some(Event::LocalFailure(true))));
    let Some(Event::Changed(changed)) = events.try_recv() else { panic!("expected a change") };
    assert_eq!(changed, [turned(HealthState::Up)]);
    assert!(events.try_recv().is_none());
    let down = std::iter::once((7, turned(HealthState::Down)));
    exchange.publish(down, None, std::iter::empty(), std::iter::empty());
    exchange.forget(7);
    assert!(events.try_recv().is_none());
}

#[tokio::test]
async fn local_failures_keep_the_state_and_are_reported() {
    let (health, mut events) = start();
    // The kernel refuses to send to a broadcast address without `SO_BROADCAST`, so every attempt
    // fails with a local error.
    let address = IpAddr::V4(Ipv4Addr::BROADCAST);
    let mut target = mute(9, "broadcast", Duration::from_millis(40));
    target.key.address = address;
    health.watch(vec![target.clone()]);
    let next = tokio::time::timeout(LONG, events.recv()).await.expect("in time").expect("the thread runs");
    let Event::Unable(unable) = next else { panic!("{next:?}") };
    let [(key, Some(why))] = unable.as_slice() else { panic!("{unable:?}") };
    assert!(*key == target.key && why.contains("this machine could not send the check"), "{unable:?}");
    let report = health.report().remove(0);
    assert_eq!((report.state, report.fails, report.last_reason), (HealthState::Unknown, 0, Some("local")));
    assert!(report.attempts >= 3 && report.last_error.as_ref() == Some(why), "{report:?}");
    health.watch(vec![]);
    let next = tokio::time::timeout(LONG, events.recv()).await.expect("in time").expect("the thread runs");
    let Event::Unable(unable) = next else { panic!("{next:?}") };
    assert_eq!(unable, [(target.key, None)]);
}

#[tokio::test]
async fn advice_arrives_before_the_state_and_a_drain_at_once() {
    let listener = tokio::net::TcpListener::bind((HERE, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (line, lines) = tokio::sync::watch::channel("up 52%\n");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let line = *lines.borrow();
            let _ = stream.write_all(line.as_bytes()).await;
        }
    });
    let agent = AgentCheck { port, send: None, min_weight: 10, max_weight: 100 };
    let (health, mut events) = start();
    health.watch(vec![watched(check(CheckKind::Agent(agent), LONG), "a", &["p"])]);
    let mut next = async || tokio::time::timeout(LONG, events.recv()).await.unwrap().unwrap();
    let Event::Advised(advised) = next().await else { panic!("the state came first") };
    assert_eq!(advised[0].1, Advice { drains: false, tenths: 5 });
    let Event::Changed(changes) = next().await else { panic!("no state") };
    assert_eq!(changes[0].state, HealthState::Up);
    line.send("drain 52%\n").unwrap();
    let Event::Advised(advised) = next().await else { panic!("no drain") };
    assert_eq!(advised[0].1, Advice { drains: true, tenths: 5 });
    line.send("down # disk full\n").unwrap();
    let Event::Changed(changes) = next().await else { panic!("no state") };
    assert_eq!(changes[0].why.as_deref(), Some("agent reports \"down\", \"disk full\""));
}

#[tokio::test]
async fn silent_udp_target_is_up_until_its_port_closes() {
    let socket = UdpSocket::bind((HERE, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    let udp = UdpCheck { port, send: Payload::Text("x".into()), expect: None };
    let (health, mut events) = start();
    health.watch(vec![watched(check(CheckKind::Udp(udp), Duration::from_millis(40)), "a", &["p"])]);
    let mut next = async || tokio::time::timeout(LONG, events.recv()).await.unwrap().unwrap();
    let Event::Changed(changes) = next().await else { panic!("no state") };
    assert_eq!(changes[0].state, HealthState::Up);
    drop(socket);
    let Event::Changed(changes) = next().await else { panic!("no state") };
    assert_eq!(changes[0].why.as_deref(), Some("ICMP port unreachable"));
}
