//! A mock of the run loop that records all commands and replies with fixed rows.

#[path = "mock_generations.rs"]
mod generations;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use admin::stats::{FlowTableStats, Stats, ThreadStats, TrafficStats};
use admin::view::{Explained, *};
use admin::{
    Answer, BackendAction, CaptureCommand, CaptureStream, Command, EventQuery, FlowQuery, HotKeysCommand,
    LogLevelOverride, MachineAction,
};
use tokio::sync::mpsc;

pub(crate) use self::generations::history;
use self::generations::*;

/// The recorded commands as text.
pub(crate) type Log = Arc<Mutex<Vec<String>>>;

/// Starts the mock. The task ends after the last sender was dropped.
pub(crate) fn start() -> (mpsc::Sender<Command>, Log) {
    let (sender, mut commands) = mpsc::channel(16);
    let log = Log::default();
    let written = Arc::clone(&log);
    tokio::spawn(async move {
        let mut readings = 0;
        while let Some(command) = commands.recv().await {
            written.lock().unwrap().push(words(&command));
            match command {
                Command::Capture { command, answer } => capture(command, answer, Arc::clone(&written)),
                other => answer(other, &mut readings),
            }
        }
    });
    (sender, log)
}

fn words(command: &Command) -> String {
    match command {
        Command::Machine { action, .. } => format!("{action:?} the machine"),
        Command::Vip { name, action, note, .. } => format!("{action:?} {name:?} for {:?}", note.lasts),
        Command::Upgrade { binary, .. } => format!("hand over to {binary:?}"),
        Command::OverrideLog { command, .. } => format!("{command:?}"),
        Command::Backend { name, pool, action, .. } => format!("{action:?} {name} in {pool:?}"),
        Command::PutConfig { text, if_match, terms, .. } => {
            format!("put {text:?} onto {if_match:?}{}", on(terms))
        }
        Command::Reload { terms, .. } => format!("Reload{}", on(terms)),
        Command::Rollback { generation, terms, .. } => format!("go back to {generation:?}{}", on(terms)),
        Command::Generation { generation, .. } => format!("generation {generation}"),
        Command::Events { query, .. } => format!("{query:?}"),
        Command::Flows { filter, limit, .. } => format!("list {filter:?} up to {limit}"),
        Command::PurgeFlows { filter, .. } => format!("purge {filter:?}"),
        Command::Capture { command, .. } => command.to_string(),
        Command::HotKeys { command: HotKeysCommand { vip, limit, within }, .. } => {
            format!("{limit} hot keys of {vip:?} in {within:?}")
        }
        Command::Where { source, destination, protocol, key, .. } => {
            let key = key.as_ref().map_or_else(String::new, |key| format!(" key {key:?}"));
            format!("where {source} {destination} {protocol}{key}")
        }
        other => format!("{other:?}").split('(').next().unwrap_or_default().to_owned(),
    }
}

fn answer(command: Command, readings: &mut u64) {
    // Send errors are ignored, because the client may have disconnected.
    match command {
        Command::Status(answer) => drop(answer.send(status())),
        Command::Vips(answer) => drop(answer.send(vec![vip()])),
        Command::Backends(answer) => drop(answer.send(backends())),
        Command::Health(answer) => drop(answer.send(health())),
        Command::Stats(answer) => {
            *readings += 1;
            drop(answer.send(stats(*readings)));
        }
        Command::Backend { name, pool, action, answer, .. } => drop(answer.send(change(name, pool, action))),
        Command::Events { query, answer } => drop(answer.send(events(&query))),
        Command::Bgp(answer) => drop(answer.send(bgp())),
        Command::Log(answer) => drop(answer.send(log_level(None))),
        Command::OverrideLog { command, answer } => drop(answer.send(log_change(command))),
        Command::Machine { action, answer } => drop(answer.send(machine(action))),
        Command::Vip { action, answer, .. } => drop(answer.send(Ok(vip_change(action, bgp().vips)))),
        Command::Upgrade { binary, answer } => drop(answer.send(upgrade(binary.as_deref()))),
        Command::Reload { terms, answer } => drop(answer.send(Ok(confirmed(report(), &terms)))),
        Command::PutConfig { text, if_match, terms, answer } => {
            drop(answer.send(put(&text, if_match.as_deref()).map(|report| confirmed(report, &terms))));
        }
        Command::Rollback { generation, terms, answer } => {
            drop(answer.send(kept(generation.unwrap_or(6)).map(|_| confirmed(report(), &terms))));
        }
        Command::Confirm(answer) => drop(answer.send(Ok(Confirmed { generation: 7 }))),
        Command::History(answer) => drop(answer.send(history())),
        Command::Generation { generation, answer } => {
            let files = config().files;
            drop(answer.send(kept(generation).map(|generation| GenerationView { generation, files })));
        }
        Command::Config(answer) => drop(answer.send(config())),
        Command::Flows { filter, limit, answer } => drop(answer.send(page(&filter, limit))),
        Command::PurgeFlows { filter, answer } => {
            drop(answer.send(known(&filter).map(|()| Purged { flows: 7 })));
        }
        Command::Where { source, destination, protocol, answer, .. } => {
            drop(answer.send(Ok(WhereView { source, destination, protocol, threads: where_rows() })));
        }
        Command::HotKeys { command, answer } => drop(answer.send(hot_keys(&command))),
        Command::EndCapture(answer) => {
            drop(answer.send(Ok(CaptureEnd { matched: 9, captured: 3, lost: 1 })));
        }
        _ => {}
    }
}

fn hot_keys(command: &HotKeysCommand) -> Result<HotKeysView, Refusal> {
    if command.vip.as_deref() == Some("www") {
        return Err(Refusal::new(RefusalKind::NotFound, "no service of VIP \"www\" has a keyed pool"));
    }
    let row = |key: &str, rate, backends: &[&str]| HotKeyRow {
        service: "users udp 11211".to_owned(),
        key: key.to_owned(),
        requests_per_second: rate,
        requests_per_second_at_most: rate + 0.5,
        share: rate / 1_000.0,
        backends: backends.iter().map(|name| (*name).to_owned()).collect(),
    };
    let service = HotServiceRow { service: "users udp 11211".to_owned(), keys_per_second: 1_000.0 };
    let keys = vec![row("user:17", 250.0, &["m1"]), row("\\xff", 12.5, &[])];
    Ok(HotKeysView { seconds: command.within.as_secs_f64(), services: vec![service], keys })
}

/// Sends one chunk per second, up to the requested number of packets. The end of the stream is
/// recorded in the log.
fn capture(command: CaptureCommand, answer: Answer<Result<CaptureStream, Refusal>>, log: Log) {
    let refused = match command.vip.as_deref() {
        Some("busy") => Some((RefusalKind::Conflict, "a capture is running")),
        Some("nobody") => Some((RefusalKind::NotFound, "no VIP \"nobody\"")),
        _ => None,
    };
    if let Some((kind, words)) = refused {
        return drop(answer.send(Err(Refusal::new(kind, words))));
    }
    let (chunks, stream) = mpsc::channel(2);
    drop(answer.send(Ok(CaptureStream(stream))));
    tokio::spawn(async move {
        for number in 0..command.count.map_or(u64::MAX, |count| count.get()) {
            // A chunk is larger than the socket buffers of the kernel.
            let chunk = format!("{number:08}").repeat(1 << 13);
            let second = tokio::time::sleep(Duration::from_secs(1));
            tokio::select! {
                () = chunks.closed() => break,
                () = second => drop(chunks.send(chunk.into()).await),
            }
        }
        let ended = if chunks.is_closed() { "the stream was dropped" } else { "the stream has ended" };
        log.lock().unwrap().push(ended.to_owned());
    });
}

pub(crate) fn status() -> Status {
    Status {
        version: "0.1.0".into(),
        machine: "lb1".into(),
        cluster: "fra1".into(),
        boot_id: "b00t".into(),
        generation: 7,
        generation_sha256: "0".repeat(64),
        digests: DigestView {
            table_algorithm: 1,
            configuration: "1".repeat(64),
            tables: Some("2".repeat(64)),
            shard: Some("west".into()),
        },
        config_file: "/etc/sluicegate/sluicegate.toml".into(),
        drift: Drift::FileChanged,
        started_unix_seconds: 1_700_000_000,
        uptime_seconds: 3_725.5,
        ready: false,
        vip_faults: vec!["not announced: dl, held down".into()],
        vip_overrides: vip_change(VipAction::Withdraw, Vec::new()).overrides,
        not_ready: vec!["no VIP is ready".into()],
        stopping: false,
        forwarder: ForwarderView { healthy: true, ..ForwarderView::default() },
        interface: "eth0".into(),
        interfaces: vec![InterfaceRow {
            name: "eth0".into(),
            link: true,
            mtu_bytes: 1_600,
            largest_packet_bytes: 1_690,
        }],
        mode: "copy".into(),
        xdp_mode: "driver".into(),
        threads: 2,
        io_threads: 0,
        vips: VipTotals { total: 1, ready: 0 },
        backends: StateTotals { serving: 1, draining: 1, down: 12, unknown: 0, flushing: 0 },
        bgp: Some(BgpTotals { peers: 2, established: 1, vips: 3, announced: 2 }),
        down: DownView {
            backends: vec!["b3 in web".into(), "b4 in web".into()],
            vips: vec!["www".into()],
            routers: vec!["tor2".into()],
        },
        overrides: vec![OverrideRow {
            by: "uid 0".into(),
            reason: Some("a new kernel".into()),
            ends_in_seconds: Some(7_200.0),
            down_in_seconds: Some(600.0),
            backend: "b2".into(),
            pool: Some("web".into()),
            says: Override { state: Some(BackendState::Draining), weight: None },
            since_seconds: 12.0,
        }],
        log_level_override: log_level(None).level_override,
        last_reload: Some(LastReload {
            unix_seconds: 1_700_000_100,
            outcome: ReloadOutcome::Refused,
            took_ms: 3.5,
            message: "pool.web: no backend".into(),
        }),
        confirmation: Some(ConfirmationRow { generation: 7, returns_to: 5, ends_in_seconds: 291.0 }),
        own_fault: Some("4 backends in 2 pools failed within 2 s, and none passed".into()),
        needs_restart: vec!["io.batch: 64 -> 32".into()],
        checks_unable: 1,
        warnings: vec!["MTU of eth0 is 1500".into()],
    }
}

fn vip() -> VipRow {
    VipRow {
        name: "www".into(),
        addresses: vec!["203.0.113.10".into(), "2001:db8:f::10".into()],
        ready: true,
        not_ready: Vec::new(),
        serving: true,
        announced_to: Some(vec!["tor1".into()]),
        services: vec![ServiceRow {
            name: "www tcp 80,443".into(),
            protocol: "tcp".into(),
            ports: "80,443".into(),
            pool: "web".into(),
            serving_pool: "web-spare".into(),
            serving: 1,
            total: 2,
            ready: true,
            redirected_to: Vec::new(),
            families: [(Family::Ipv4, 2), (Family::Ipv6, 1)].map(family_row).to_vec(),
            flows: Some(7),
            packets: 10,
            bytes: 640,
        }],
    }
}

fn family_row((family, serving): (Family, usize)) -> FamilyRow {
    let serving_pool = "web-spare".into();
    FamilyRow { family: Some(family), serving_pool, serving, total: 2, ready: true }
}

fn backends() -> Vec<BackendRow> {
    let check = CheckRow {
        check: "web".into(),
        via: Via::Backend,
        vip: None,
        state: CheckState::Up,
        since_seconds: 30.0,
        last_error: Some("connection refused".into()),
        last_error_seconds: Some(3_700.5),
    };
    let serving = BackendRow {
        name: "b1".into(),
        address: [198, 18, 1, 1].into(),
        pool: "web".into(),
        pools: vec!["web".into()],
        state: BackendState::Serving,
        less_for: vec![SeenByVip { vip: "www".into(), family: Family::Ipv6, state: BackendState::Down }],
        why: None,
        overridden: None,
        weight_configured: 1,
        weight_effective: 1,
        shares: [("web".to_owned(), 1.0)].into(),
        flows: Some(7),
        active_flows: Some(5),
        flows_by_vip: [("www".to_owned(), 7)].into(),
        packets: 9,
        bytes: 576,
        checks: vec![check],
        flush_error: None,
    };
    let draining = BackendRow {
        name: "b2".into(),
        address: "2001:db8:18::2".parse().unwrap(),
        state: BackendState::Draining,
        why: Some(Why::Operator),
        overridden: Some(Override { state: Some(BackendState::Draining), weight: Some(3) }),
        shares: [("web".to_owned(), 0.0)].into(),
        checks: Vec::new(),
        less_for: Vec::new(),
        ..serving.clone()
    };
    vec![serving, draining]
}

fn health() -> HealthView {
    let target = |state, vip: Option<[u8; 4]>| TargetRow {
        backends: vec!["b1".into()],
        address: ([198, 18, 1, 1], 8080).into(),
        check: "web".into(),
        via: if vip.is_some() { Via::Vip } else { Via::Backend },
        vip: vip.map(Into::into),
        vip_name: vip.map(|_| "www".into()),
        state,
        since_seconds: 30.25,
        passes: 0,
        failures: 3,
        last_error: Some("status 503".into()),
        last_error_seconds: Some(190.0),
        latency_us: Some(412),
        history: vec![true, false],
    };
    HealthView {
        own_fault: Some("held".into()),
        targets: vec![target(CheckState::Up, None), target(CheckState::Down, Some([203, 0, 113, 10]))],
    }
}

pub(crate) fn bgp() -> BgpView {
    let peer = |bfd| BgpPeerRow {
        name: "tor1".into(),
        address: [192, 0, 2, 0].into(),
        asn: 65_000,
        state: SessionState::Established,
        since_seconds: 30.5,
        established: 2,
        failures: 0,
        last_error: None,
        last_error_seconds: None,
        last_end: Some("hold time expired: no message for 9s".into()),
        last_end_seconds: Some(31.0),
        refused: vec!["ipv6 unicast".into()],
        hold_seconds: Some(9.0),
        announced_v4: 1,
        announced_v6: 0,
        unannounceable: 0,
        pending: 0,
        ignored_prefixes: 7,
        bfd,
    };
    let idle = BgpPeerRow {
        state: SessionState::Idle,
        last_error: Some("hold time expired: no message for 9s".into()),
        last_error_seconds: Some(1.0),
        last_end: None,
        last_end_seconds: None,
        hold_seconds: None,
        ..peer(None)
    };
    let route = RouteRow {
        prefix: "203.0.113.10/32".into(),
        peers: vec!["tor1".into()],
        med: Some(100),
        communities: vec!["65101:10".into()],
    };
    let vip = AnnouncedVip {
        vip: "www".into(),
        family: Some(Family::Ipv4),
        state: AnnouncementState::Announced,
        why: None,
        returns_in_seconds: None,
        since_seconds: Some(12.0),
        by_family: true,
        withdrawals: 1,
        not_announced_seconds: 12.5,
        backup: true,
        routes: vec![route],
    };
    let held = AnnouncedVip {
        family: None,
        state: AnnouncementState::HeldDown,
        why: Some("held down".into()),
        returns_in_seconds: Some(3.5),
        since_seconds: None,
        ..vip.clone()
    };
    BgpView {
        asn: Some(65_101),
        router_id: Some([192, 0, 2, 1].into()),
        stage: DrainStage::Leaving,
        peers: vec![peer(Some(BfdView { state: BfdState::Up, since_seconds: 30.0, losses: 1 })), idle],
        vips: vec![vip, held],
        warnings: vec!["a peer has no session".into()],
    }
}

/// Returns two events with the numbers 6 and 7.
pub(crate) fn events(query: &EventQuery) -> EventsView {
    let row = EventRow {
        number: 6,
        unix_seconds: 1_700_000_100.25,
        kind: EventKind::Backend,
        severity: EventSeverity::Warning,
        what: "backend down".into(),
        about: [("backend".to_owned(), "b1".to_owned())].into(),
        cause: Some("connection refused".into()),
    };
    let next = EventRow {
        number: 7,
        kind: EventKind::Link,
        severity: EventSeverity::Info,
        what: "eth0 is up again".into(),
        about: [].into(),
        cause: None,
        ..row.clone()
    };
    let events = [row, next].into_iter().filter(|row| row.number > query.after);
    EventsView { boot_id: "b00t".into(), newest: 7, forgotten: 0, events: events.collect() }
}

/// Returns the log level with this override, or with a fixed earlier override if there is none.
pub(crate) fn log_level(command: Option<LogLevelOverride>) -> LogView {
    let before = LogLevelOverride {
        level: LogLevel::Debug,
        lasts: Duration::from_secs(600),
        by: "uid 0".into(),
        reason: Some("b2 flaps".into()),
    };
    let LogLevelOverride { level, lasts, by, reason } = command.unwrap_or(before);
    let ends_in_seconds = lasts.as_secs_f64();
    let command = Some(LogLevelOverrideRow { level, since_seconds: 0.0, by, reason, ends_in_seconds });
    LogView { level, file_level: LogLevel::Info, level_override: command }
}

fn log_change(command: Option<LogLevelOverride>) -> LogChange {
    let (before, file_level) = (log_level(None).level, LogLevel::Info);
    let log = match command {
        None => LogView { level: file_level, file_level, level_override: None },
        command => log_level(command),
    };
    LogChange {
        changed: true,
        level_before: before,
        log,
        notes: vec!["the configured level is also info".into()],
    }
}

fn machine(action: MachineAction) -> Result<MachineDrain, Refusal> {
    if action == MachineAction::Undrain {
        return Err(Refusal::new(RefusalKind::Conflict, "the machine is not draining"));
    }
    Ok(MachineDrain {
        machine: "lb1".into(),
        stage: DrainStage::Leaving,
        notice_seconds: 5.0,
        drain_seconds: 60.0,
        notes: vec!["already draining; at most 60 s left".into()],
    })
}

fn upgrade(binary: Option<&str>) -> Result<Upgraded, Refusal> {
    if let Some(binary) = binary.filter(|binary| binary.ends_with("false")) {
        return Err(Refusal::new(RefusalKind::Conflict, format!("{binary} exited with code 1")));
    }
    Ok(Upgraded {
        machine: "lb1".into(),
        version: "0.2.0".into(),
        pid: 4_711,
        took_ms: 812.5,
        handed_over_ms: vec![51.0, 48.5],
        flow_records: 9_000,
    })
}

/// Returns the counters of the nth query. The packet counters increase by 1,000 with each query.
pub(crate) fn stats(reading: u64) -> Stats {
    let traffic = |share: u64| TrafficStats {
        packets: share * reading,
        bytes: 64 * share * reading,
        new_flows: share / 10 * reading,
    };
    let thread = ThreadStats {
        rx: 500 * reading,
        batch_sizes: vec![1, 2, 3],
        busy_nanos: 1_000_000 * reading,
        drops: [("no_vip".to_owned(), 2 * reading), ("ttl".to_owned(), 0)].into(),
        flows: FlowTableStats { entries: 40, capacity: 1_000, ..FlowTableStats::default() },
        ..ThreadStats::default()
    };
    let mut total = thread.clone();
    total += &thread;
    Stats {
        generation: 7,
        xdp_mode: "driver".into(),
        mode: [("eth0".to_owned(), "copy".to_owned())].into(),
        total,
        threads: vec![thread.clone(), thread],
        backends: [("b1".to_owned(), traffic(900)), ("b2".to_owned(), traffic(100))].into(),
        services: [("www tcp 80,443".to_owned(), traffic(1_000))].into(),
        ..Stats::default()
    }
}

fn change(name: String, pool: Option<String>, action: BackendAction) -> Result<BackendChange, Refusal> {
    match (name.as_str(), action) {
        ("b1", _) => {}
        ("b2", BackendAction::Undrain) => {
            return Err(Refusal::new(RefusalKind::Conflict, "b2 is not drained"));
        }
        _ => return Err(Refusal::new(RefusalKind::NotFound, format!("no backend {name}"))),
    }
    let weight_after = if let BackendAction::Weight(Some(weight)) = action { weight } else { 1 };
    if weight_after > 1_000 {
        return Err(Refusal::new(RefusalKind::Invalid, "weight 1001 is out of range, use 0 to 1000"));
    }
    Ok(BackendChange {
        backend: name,
        generation: 8,
        changed: true,
        memberships: vec![MembershipChange {
            pool: pool.unwrap_or_else(|| "web".into()),
            before: BackendState::Serving,
            after: match action {
                BackendAction::Drain => BackendState::Draining,
                BackendAction::Down => BackendState::Down,
                _ => BackendState::Serving,
            },
            weight_before: 1,
            weight_after,
            overridden: Some(Override { state: None, weight: Some(weight_after) }),
        }],
        notes: vec!["kept over reloads, lost on restart".into()],
    })
}

fn known(filter: &FlowQuery) -> Result<(), Refusal> {
    match filter {
        FlowQuery::Vip(name) if name != "www" => {
            Err(Refusal::new(RefusalKind::NotFound, format!("no VIP {name}")))
        }
        FlowQuery::Backend(name) if name != "b1" => {
            Err(Refusal::new(RefusalKind::NotFound, format!("no backend {name}")))
        }
        _ => Ok(()),
    }
}

fn flow() -> FlowRow {
    FlowRow {
        thread: 1,
        tag: "00c0ffee1234".into(),
        service: Some("www tcp 80,443".into()),
        backend: Some("b1".into()),
        pool: Some("web".into()),
        state: FlowState::Established,
        on_probation: false,
        idle_seconds: 3.0,
    }
}

fn page(filter: &FlowQuery, limit: usize) -> Result<FlowPage, Refusal> {
    known(filter)?;
    let gone = FlowRow { service: None, backend: None, pool: None, state: FlowState::Udp, ..flow() };
    let flows: Vec<_> = [flow(), gone].into_iter().take(limit).collect();
    Ok(FlowPage { generation: 7, more: flows.len() < 2, flows })
}

fn where_rows() -> Vec<WhereRow> {
    let backend = |name: &str, last| WhereBackend {
        name: name.into(),
        address: [198, 18, 1, last].into(),
        encapsulation: Encapsulation::Gre,
    };
    let known = Explained {
        verdict: Verdict::Forward,
        step: Some(Step::FlowTable),
        service: Some("www tcp 80,443".into()),
        pool: Some("web".into()),
        hashed: Some(Hashed::FiveTuple),
        hash: Some("0x0123456789abcdef".into()),
        table_size: Some(65_537),
        backend: Some(backend("b1", 1)),
        ..Explained::default()
    };
    let dropped = Explained { verdict: Verdict::Drop("no_vip".into()), ..Explained::default() };
    let rejection = Rejection { reply: RejectionReply::TcpReset, reason: "no_backend".into() };
    let rejected = Explained { verdict: Verdict::Reject, rejection: Some(rejection), ..Explained::default() };
    let row =
        |thread, tracked, chosen, explained| WhereRow { thread, generation: 7, tracked, chosen, explained };
    let first = row(0, Some(flow()), Some(backend("b2", 2)), known);
    vec![first, row(1, None, None, dropped), row(2, None, None, rejected)]
}
