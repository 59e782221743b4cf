//! Tests of next hops against the tables of the kernel. Each test creates unnamed network
//! namespaces, which disappear at its end.
//!
//! The tests need root and `ip` (iproute2): `cargo test -p sluicegate-next-hop --test next_hop`.
//! Every test has two machines. The code under test runs in `ours`. The other machine is `theirs`.
//! One or two veth pairs connect them, `out0`-`in0` and `out1`-`in1`.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use next_hop::{Gateway, NextHopError, Resolved, Resolver, Table, Unresolved, Wanted, Watch};
use nix::sched::{CloneFlags, setns, unshare};
use packet::Tags;
use tokio::sync::{oneshot, watch};

const OUT0: [u8; 6] = [2, 0, 0, 0, 0, 0x10];
const IN0: [u8; 6] = [2, 0, 0, 0, 0, 0x20];
const OUT1: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const IN1: [u8; 6] = [2, 0, 0, 0, 0, 0x21];

/// A network namespace that exists as long as this file is open.
struct Namespace(File);

impl Namespace {
    fn new() -> Self {
        let file = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        let namespace = Self(file.join().unwrap());
        namespace.ip("link set lo up");
        namespace
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs `task` on its own thread in the namespace.
    fn run<T: Send>(&self, task: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
                task()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn ip(&self, arguments: &str) -> String {
        let output =
            self.run(|| Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2"));
        assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn sysctl(&self, key: &str, value: &str) {
        self.run(|| fs::write(format!("/proc/sys/net/{key}"), value).unwrap());
    }

    fn index(&self, interface: &str) -> u32 {
        self.ip(&format!("-o link show {interface}")).split(':').next().unwrap().parse().unwrap()
    }

    /// Runs `task` in the namespace with a resolver.
    fn resolve<T: Send>(&self, task: impl AsyncFnOnce(Resolver) -> T + Send) -> T {
        self.run(|| runtime().block_on(async { task(Resolver::open().unwrap()).await }))
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Creates two machines with `pairs` links between them. The first link has 192.0.2.0/24 and
/// 2001:db8:0:1::/64. The second link has 198.18.0.0/24.
fn machines(pairs: usize) -> (Namespace, Namespace) {
    let (ours, theirs) = (Namespace::new(), Namespace::new());
    for pair in 0..pairs {
        ours.ip(&format!(
            "link add out{pair} address 02:00:00:00:00:1{pair} type veth \
             peer name in{pair} address 02:00:00:00:00:2{pair} netns {}",
            theirs.path()
        ));
        for (namespace, end) in [(&ours, "out"), (&theirs, "in")] {
            namespace.ip(&format!("link set {end}{pair} up"));
        }
    }
    for (namespace, device, address) in [
        (&ours, "out0", "192.0.2.1/24"),
        (&theirs, "in0", "192.0.2.2/24"),
        (&ours, "out0", "2001:db8:0:1::1/64 nodad"),
        (&theirs, "in0", "2001:db8:0:1::2/64 nodad"),
        (&ours, "out1", "198.18.0.1/24"),
        (&theirs, "in1", "198.18.0.2/24"),
    ] {
        if pairs > 1 || device.ends_with('0') {
            namespace.ip(&format!("address add {address} dev {device}"));
        }
    }
    // The other machine announces changes of its Ethernet address on the link.
    theirs.sysctl("ipv4/conf/in0/arp_notify", "1");
    theirs.sysctl("ipv6/conf/in0/ndisc_notify", "1");
    (ours, theirs)
}

fn ip(address: &str) -> IpAddr {
    address.parse().unwrap()
}

fn resolved(interface: u32, gateway: Option<&str>, source: &str) -> Resolved {
    Resolved {
        interface,
        leaves_by: interface,
        tags: Tags::NONE,
        destination: IN0,
        source: OUT0,
        mtu_bytes: 1_500,
        gateway: gateway.map(ip),
        preferred_source: Some(ip(source)),
    }
}

/// Resolves until `destination` is no longer pending.
async fn settled(resolver: &mut Resolver, destination: IpAddr) -> Result<Resolved, Unresolved> {
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        let now = resolver.resolve(&[destination]).await.unwrap()[&destination].first();
        if !matches!(now, Err(Unresolved::NeighbourPending { .. })) {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{destination} is still pending")
}

/// A running watch in a namespace, on its own thread.
struct Watching {
    tables: mpsc::Receiver<(Instant, Table)>,
    wanted: watch::Sender<Wanted>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<Result<(), NextHopError>>>,
}

impl Watching {
    fn start(namespace: &Namespace, destinations: &[&str], gateway_interfaces: &[u32]) -> Self {
        let first = Wanted {
            destinations: destinations.iter().copied().map(ip).collect(),
            gateway_interfaces: gateway_interfaces.to_vec(),
            ..Wanted::default()
        };
        let (wanted, receiver) = watch::channel(first);
        let (stop, stopped) = oneshot::channel::<()>();
        let (sender, tables) = mpsc::channel();
        let file = namespace.0.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            setns(&file, CloneFlags::CLONE_NEWNET).unwrap();
            runtime().block_on(async {
                let on_change = move |table: &Table| sender.send((Instant::now(), table.clone())).unwrap();
                let stopped = async { drop(stopped.await) };
                let watching = Watch::open().unwrap().run(receiver, stopped, on_change);
                tokio::spawn(watching).await.unwrap()
            })
        });
        Self { tables, wanted, stop: Some(stop), thread: Some(thread) }
    }

    /// Waits for a table that satisfies `accept`, and prints the delay.
    fn until(&self, what: &str, accept: impl FnMut(&Table) -> bool) -> Table {
        self.within(PATIENCE, what, accept)
    }

    /// Waits for a change that the kernel reports by a notification. The timeout is shorter than
    /// the interval between regular passes.
    fn notified(&self, what: &str, accept: impl FnMut(&Table) -> bool) -> Table {
        self.within(9 * SECOND, what, accept)
    }

    fn within(&self, limit: Duration, what: &str, mut accept: impl FnMut(&Table) -> bool) -> Table {
        let (since, mut last) = (Instant::now(), None);
        while let Ok((at, table)) = self.tables.recv_timeout(limit.saturating_sub(since.elapsed())) {
            if accept(&table) {
                println!("{what}: {:?}", at.saturating_duration_since(since));
                return table;
            }
            last = Some(table);
        }
        panic!("{what}: not within {limit:?}; last seen: {last:?}")
    }

    /// Stops the watch and returns how long that took.
    fn stop(mut self) -> Duration {
        let since = Instant::now();
        self.stop.take().unwrap().send(()).unwrap();
        self.thread.take().unwrap().join().unwrap().unwrap();
        since.elapsed()
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// The timeout of every wait. It is ten times the longest delay, which occurs when the kernel
/// probes a neighbor three times, once per second. The measured delays are printed and not checked,
/// because the machine may be busy. The kernel also limits reports of carrier changes to one per
/// second over all links of all namespaces (Linux `net/core/link_watch.c`).
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn direct_and_gateway_neighbours_resolve_in_both_families() {
    let (ours, _theirs) = machines(1);
    ours.ip("route add 198.51.100.0/24 via 192.0.2.2");
    ours.ip("route add 203.0.113.0/24 via inet6 2001:db8:0:1::2");
    ours.ip("route add 2001:db8:a::/48 via 2001:db8:0:1::2 mtu 1300");
    let out0 = ours.index("out0");
    let expected = [
        ("192.0.2.2", resolved(out0, None, "192.0.2.1")),
        ("198.51.100.7", resolved(out0, Some("192.0.2.2"), "192.0.2.1")),
        ("203.0.113.7", resolved(out0, Some("2001:db8:0:1::2"), "192.0.2.1")),
        ("2001:db8:0:1::2", resolved(out0, None, "2001:db8:0:1::1")),
        (
            "2001:db8:a::7",
            Resolved { mtu_bytes: 1_300, ..resolved(out0, Some("2001:db8:0:1::2"), "2001:db8:0:1::1") },
        ),
    ];
    ours.resolve(async |mut resolver| {
        let all: Vec<IpAddr> = expected.iter().map(|(to, _)| ip(to)).collect();
        for (to, before) in resolver.resolve(&all).await.unwrap() {
            assert!(matches!(before.first(), Err(Unresolved::NeighbourPending { .. })), "{to}: {before:?}");
        }
        for neighbour in ["192.0.2.2", "2001:db8:0:1::2"] {
            resolver.ask(out0, ip(neighbour)).await.unwrap();
        }
        for (to, next_hop) in expected {
            assert_eq!(settled(&mut resolver, ip(to)).await, Ok(next_hop), "{to}");
        }
    });
}

#[test]
fn what_cannot_be_reached_says_why() {
    let (ours, theirs) = machines(1);
    for (kind, third) in [("blackhole", 1), ("unreachable", 2), ("prohibit", 3), ("throw", 4)] {
        ours.ip(&format!("route add {kind} 198.51.100.{third}/32"));
        ours.ip(&format!("route add {kind} 2001:db8:b::{third}/128"));
    }
    ours.ip("route add 198.51.100.9/32 dev lo");
    let (lo, interface) = (ours.index("lo"), ours.index("out0"));
    let expected = [
        ("198.51.100.1", Unresolved::Blackhole),
        ("198.51.100.2", Unresolved::Unreachable),
        ("198.51.100.3", Unresolved::Prohibited),
        ("198.51.100.4", Unresolved::NoRoute),
        ("198.51.100.9", Unresolved::NoMac { interface: lo }),
        ("198.51.100.10", Unresolved::NoRoute),
        ("2001:db8:b::1", Unresolved::Blackhole),
        ("2001:db8:b::2", Unresolved::Unreachable),
        ("2001:db8:b::3", Unresolved::Prohibited),
        ("2001:db8:b::5", Unresolved::NoRoute),
        ("192.0.2.1", Unresolved::Local),
        ("2001:db8:0:1::1", Unresolved::Local),
        ("192.0.2.255", Unresolved::NotUnicast),
        ("192.0.2.99", Unresolved::NeighbourFailed { interface, neighbour: ip("192.0.2.99") }),
        ("2001:db8:0:1::99", Unresolved::NeighbourFailed { interface, neighbour: ip("2001:db8:0:1::99") }),
    ];
    ours.resolve(async |mut resolver| {
        for neighbour in ["192.0.2.99", "2001:db8:0:1::99"] {
            resolver.ask(interface, ip(neighbour)).await.unwrap();
        }
        for (to, why) in expected {
            assert_eq!(settled(&mut resolver, ip(to)).await, Err(why), "{to}");
        }
    });
    ours.ip("neighbour replace 192.0.2.50 lladdr 02:00:00:00:00:50 dev out0 nud permanent");
    let to = ip("192.0.2.50");
    ours.resolve(async |mut resolver| {
        let next_hop = resolver.resolve(&[to]).await.unwrap()[&to].first().unwrap();
        assert_eq!(next_hop.destination, [2, 0, 0, 0, 0, 0x50]);
    });
    theirs.ip("link set in0 down");
    ours.resolve(async |mut resolver| {
        assert_eq!(
            resolver.resolve(&[to]).await.unwrap()[&to].first(),
            Err(Unresolved::LinkDown { interface })
        );
    });
}

#[test]
fn gateways_are_those_of_the_given_interfaces_and_known() {
    let (ours, theirs) = machines(2);
    theirs.ip("address add 192.0.2.3/24 dev in0");
    ours.ip("route add default nexthop via 192.0.2.2 nexthop via 198.18.0.2");
    ours.ip("route add 2001:db8:a::/48 via 2001:db8:0:1::2");
    ours.ip("route add 203.0.113.0/24 via 192.0.2.3 table 77");
    ours.ip("route add 203.0.113.0/24 via 192.0.2.98");
    let (out0, out1) = (ours.index("out0"), ours.index("out1"));
    let gateway = |interface, address, mac| Gateway { interface, address: ip(address), mac };
    let first = [
        gateway(out0, "192.0.2.2", IN0),
        gateway(out0, "192.0.2.3", IN0),
        gateway(out0, "2001:db8:0:1::2", IN0),
    ];
    let second = gateway(out1, "198.18.0.2", IN1);
    ours.resolve(async |mut resolver| {
        assert_eq!(resolver.gateways(&[out0, out1]).await.unwrap(), []);
        for Gateway { interface, address, .. } in first.iter().chain([&second]) {
            resolver.ask(*interface, *address).await.unwrap();
            settled(&mut resolver, *address).await.unwrap();
        }
        assert_eq!(resolver.gateways(&[out0]).await.unwrap(), first);
        assert_eq!(resolver.gateways(&[out1]).await.unwrap(), [second]);
        assert_eq!(resolver.gateways(&[out1, out0]).await.unwrap(), [&first[..], &[second]].concat());
        assert_eq!(resolver.gateways(&[]).await.unwrap(), []);
        // Each path of the default route resolves, whichever one the kernel selects.
        let to = ip("198.51.100.77");
        let next_hop = resolver.resolve(&[to]).await.unwrap()[&to].first().unwrap();
        let paths = [(out0, IN0, OUT0), (out1, IN1, OUT1)];
        assert!(paths.contains(&(next_hop.interface, next_hop.destination, next_hop.source)), "{next_hop:?}");
    });
    // A watch makes the kernel resolve the gateways.
    ours.ip("neighbour flush dev out0");
    let watching = Watching::start(&ours, &[], &[out0]);
    watching.until("gateways", |table| table.gateways == first);
}

#[test]
fn a_watch_follows_changes() {
    let (ours, theirs) = machines(2);
    ours.ip("route add 198.51.100.0/24 via 192.0.2.2");
    let (out0, out1) = (ours.index("out0"), ours.index("out1"));
    let destinations = ["192.0.2.2", "198.51.100.7", "2001:db8:0:1::2"];
    let watching = Watching::start(&ours, &destinations, &[]);
    let all = |table: &Table, check: &dyn Fn(&Resolved) -> bool| {
        table.next_hops.values().all(|hops| hops.first().as_ref().is_ok_and(check))
    };

    // The first probes of the kernel arrive while the interface is still coming up. The kernel
    // repeats them each second.
    let table = watching.until("first resolved", |table| all(table, &|_| true));
    assert_eq!(table.next_hops.len(), 3);
    assert_eq!(
        table.next_hops[&ip("198.51.100.7")].first(),
        Ok(resolved(out0, Some("192.0.2.2"), "192.0.2.1"))
    );

    let new = [2, 0, 0, 0, 0, 0x77];
    theirs.ip("link set in0 address 02:00:00:00:00:77");
    watching.notified("a neighbour's MAC", |table| all(table, &|hop| hop.destination == new));

    ours.ip("link set out0 address 02:00:00:00:00:66");
    watching.notified("our MAC", |table| all(table, &|hop| hop.source == [2, 0, 0, 0, 0, 0x66]));

    ours.ip("link set out0 mtu 1400");
    watching.notified("MTU of the link", |table| all(table, &|hop| hop.mtu_bytes == 1_400));

    let of_route = |table: &Table| table.next_hops[&ip("198.51.100.7")].first();
    ours.ip("route replace 198.51.100.0/24 via 198.18.0.2 mtu 1350");
    let table = watching.notified("a route", |table| of_route(table).is_ok_and(|hop| hop.interface == out1));
    let elsewhere = Resolved {
        interface: out1,
        leaves_by: out1,
        tags: Tags::NONE,
        destination: IN1,
        source: OUT1,
        mtu_bytes: 1_350,
        gateway: Some(ip("198.18.0.2")),
        preferred_source: Some(ip("198.18.0.1")),
    };
    assert_eq!(of_route(&table), Ok(elsewhere));

    ours.ip("route delete 198.51.100.0/24");
    watching.notified("a route gone", |table| of_route(table) == Err(Unresolved::NoRoute));

    theirs.ip("link set in0 down");
    watching.notified("carrier lost", |table| {
        table.next_hops[&ip("192.0.2.2")].first() == Err(Unresolved::LinkDown { interface: out0 })
    });
    theirs.ip("link set in0 up");
    watching.notified("carrier back", |table| table.next_hops[&ip("192.0.2.2")].first().is_ok());

    let wanted = Wanted { destinations: vec![ip("198.18.0.2")], ..Wanted::default() };
    watching.wanted.send(wanted).unwrap();
    let table = watching.notified("wanted", |table| table.next_hops.contains_key(&ip("198.18.0.2")));
    assert_eq!(table.next_hops.len(), 1);

    println!("stop: {:?}", watching.stop());
}

#[test]
fn stale_neighbour_stays_usable_and_is_probed() {
    let (ours, _theirs) = machines(1);
    ours.sysctl("ipv4/neigh/out0/delay_first_probe_time", "1");
    let watching = Watching::start(&ours, &["192.0.2.2"], &[]);
    watching.until("first resolved", |table| table.next_hops[&ip("192.0.2.2")].first().is_ok());
    let state = || ours.ip("neighbour show 192.0.2.2 dev out0");
    ours.ip("neighbour change 192.0.2.2 lladdr 02:00:00:00:00:20 dev out0 nud stale");
    let since = Instant::now();
    while !state().contains("REACHABLE") {
        assert!(since.elapsed() < PATIENCE, "{}", state());
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("stale to reachable: {:?}", since.elapsed());
    assert!(watching.tables.try_recv().is_err(), "the table did not change");
}

#[test]
fn a_dead_neighbour_fails_once_and_is_found_when_it_comes_back() {
    let (ours, theirs) = machines(1);
    let watching = Watching::start(&ours, &["192.0.2.3"], &[]);
    let (interface, neighbour) = (ours.index("out0"), ip("192.0.2.3"));
    let failed = Err(Unresolved::NeighbourFailed { interface, neighbour });
    watching.until("failed", |table| table.next_hops[&neighbour].first() == failed);
    // The wait is longer than the time that the kernel needs for three probes and another failure.
    let more = watching.tables.recv_timeout(5 * SECOND);
    assert!(more.is_err(), "the state flaps between pending and failed: {more:?}");
    theirs.ip("address add 192.0.2.3/24 dev in0");
    watching.until("back", |table| table.next_hops[&neighbour].first().is_ok());
}

#[test]
fn a_permanent_neighbour_stays_permanent() {
    let (ours, _theirs) = machines(1);
    ours.ip("neighbour add 192.0.2.9 lladdr 02:00:00:00:00:99 dev out0 nud permanent");
    let watching = Watching::start(&ours, &["192.0.2.9", "192.0.2.98"], &[]);
    watching.until("first resolved", |table| table.next_hops[&ip("192.0.2.9")].first().is_ok());
    // The unresolved neighbor 192.0.2.98 makes the watch run every second.
    std::thread::sleep(2 * SECOND);
    assert!(ours.ip("neighbour show 192.0.2.9").contains("PERMANENT"));
}

#[test]
fn a_thousand_destinations_resolve_in_one_look() {
    let (ours, _theirs) = machines(1);
    let destinations: Vec<IpAddr> =
        (0..1_000).map(|n| ip(&format!("198.51.{}.{}", 100 + n / 250, n % 250 + 1))).collect();
    ours.ip("route add 198.51.100.0/22 via 192.0.2.2");
    let out0 = ours.index("out0");
    ours.resolve(async |mut resolver| {
        resolver.ask(out0, ip("192.0.2.2")).await.unwrap();
        settled(&mut resolver, destinations[0]).await.unwrap();
        let since = Instant::now();
        let table = resolver.resolve(&destinations).await.unwrap();
        println!("1,000 destinations: {:?}", since.elapsed());
        assert_eq!(table.len(), 1_000);
        assert!(table.values().all(|next_hop| next_hop.first().is_ok_and(|hop| hop.destination == IN0)));
    });
}

#[test]
fn all_hops_of_a_multipath_route_are_resolved() {
    let (ours, theirs) = machines(2);
    ours.ip("route add 198.51.100.0/24 nexthop via 192.0.2.2 weight 3 nexthop via 198.18.0.2");
    ours.ip("address add 2001:db8:0:2::1/64 dev out1 nodad");
    theirs.ip("address add 2001:db8:0:2::2/64 dev in1 nodad");
    ours.ip("route add 2001:db8:a::/48 nexthop via 2001:db8:0:1::2 nexthop via 2001:db8:0:2::2");
    ours.ip("nexthop add id 1 via 192.0.2.2 dev out0");
    ours.ip("nexthop add id 2 via 198.18.0.2 dev out1");
    ours.ip("nexthop add id 3 group 1/2");
    ours.ip("route add 203.0.113.0/24 nhid 3");
    let (out0, out1) = (ours.index("out0"), ours.index("out1"));
    let v4 = [(out0, ip("192.0.2.2")), (out1, ip("198.18.0.2"))];
    let v6 = [(out0, ip("2001:db8:0:1::2")), (out1, ip("2001:db8:0:2::2"))];
    let routes = [("198.51.100.7", v4, [3, 1]), ("203.0.113.7", v4, [1, 1]), ("2001:db8:a::7", v6, [1, 1])];
    let wanted: Vec<&str> = routes.iter().map(|(to, ..)| *to).collect();
    let watching = Watching::start(&ours, &wanted, &[]);
    let hops = |table: &Table, to: &str| table.next_hops[&ip(to)].several().to_vec();
    watching.until("all hops", |table| {
        routes.iter().all(|(to, ..)| hops(table, to).iter().filter(|hop| hop.found.is_ok()).count() == 2)
    });
    ours.resolve(async |mut resolver| {
        for (to, neighbours, weights) in routes {
            let found = resolver.resolve(&[ip(to)]).await.unwrap().remove(&ip(to)).unwrap();
            let hops = found.several();
            assert_eq!(hops.iter().map(|hop| hop.neighbour).collect::<Vec<_>>(), neighbours, "{to}");
            assert_eq!(hops.iter().map(|hop| hop.weight).collect::<Vec<_>>(), weights, "{to}");
            let macs: Vec<_> =
                hops.iter().map(|hop| hop.found.map(|hop| (hop.destination, hop.source))).collect();
            assert_eq!(macs, [Ok((IN0, OUT0)), Ok((IN1, OUT1))], "{to}");
        }
    });
    // The link of the second hop loses its carrier, and the kernel still lists the hop.
    theirs.ip("link set in1 down");
    watching.until("second hop down", |table| {
        let hops = hops(table, "198.51.100.7");
        hops.len() == 2
            && hops[0].found.is_ok()
            && hops[1].found == Err(Unresolved::LinkDown { interface: out1 })
            && table.next_hops[&ip("198.51.100.7")].first() == hops[0].found
    });
    theirs.ip("link set in1 up");
    watching.until("second hop back", |table| {
        ["198.51.100.7", "203.0.113.7"].iter().all(|to| hops(table, to).iter().all(|hop| hop.found.is_ok()))
    });
}
