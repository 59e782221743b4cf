//! Tests that two machines of a cluster have identical digests, regardless of file order, start
//! time and history.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a failed unwrap fails the test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use admin::view::DigestView;
use config::{Config, load_with};
use control_plane::Controller;
use control_plane::digest::{Digests, hex, of_configuration};
use forwarder::{Decision, Flow, Snapshot};
use health::{HealthState, Watched};
use next_hop::Table;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

const BACKENDS: u8 = 8;
const KEY: &str = "00112233445566778899aabbccddeeff";

/// A cluster configuration with random content.
#[derive(Clone, Debug)]
struct Cluster {
    size: u32,
    /// The encapsulation of all pools. All pools have the same encapsulation, because a backend
    /// must have the same encapsulation in a pool and in the pools nested in it.
    encapsulation: &'static str,
    pools: Vec<Pool>,
    vips: Vec<Vip>,
    /// Additional text for the configuration: keys of `[cluster]`, or other sections.
    more: &'static str,
}

#[derive(Clone, Debug)]
struct Pool {
    /// The number and the weight of each backend.
    backends: Vec<(u8, u32)>,
    slow_start: bool,
    /// `true` if the next pool is the fallback of this pool.
    fallback: bool,
    nests_next: bool,
}

#[derive(Clone, Debug)]
struct Vip {
    pool: usize,
    hash: &'static str,
    ports: BTreeSet<u16>,
    denies: BTreeSet<u8>,
}

/// A deterministic pseudo-random generator that determines order and notation in the file.
struct Order(u64);

impl Order {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below.max(1)
    }

    fn shuffled<T>(&mut self, items: impl IntoIterator<Item = T>) -> Vec<T> {
        let mut items: Vec<T> = items.into_iter().collect();
        for last in (1..items.len()).rev() {
            items.swap(last, self.next(last + 1));
        }
        items
    }

    fn list(&mut self, items: impl IntoIterator<Item = String>) -> String {
        format!("[{}]", self.shuffled(items).join(", "))
    }
}

fn backend((number, weight): &(u8, u32), order: &mut Order) -> String {
    let weight = match weight {
        1 if order.next(2) == 0 => String::new(), // The default value is sometimes omitted.
        weight => format!(", weight = {weight}"),
    };
    format!("{{ name = \"b{number}\", address = \"198.18.0.{number}\"{weight} }}")
}

impl Cluster {
    /// Returns the sections of the file. `order` determines the order of lists and the comments
    /// between sections.
    fn sections(&self, order: &mut Order) -> Vec<String> {
        let drain = if order.next(2) == 0 { "60s" } else { "1m" };
        let mut sections = vec![
            format!(
                "[cluster]\nname = \"fra\"\nhash_key_file = \"hash.key\"\ntable_size = {}\ndrain_time = \"{drain}\"\n{}\n",
                self.size, self.more
            ),
            "[check.up]\ntcp = { port = 80 }\n".to_owned(),
        ];
        for (number, pool) in self.pools.iter().enumerate() {
            sections.push(self.pool(number, pool, order));
        }
        for (number, vip) in self.vips.iter().enumerate() {
            sections.push(self.vip(number, vip, order));
        }
        let comment = |section| format!("# {}\n{section}", "a word ".repeat(order.next(3)));
        let sections: Vec<String> = sections.into_iter().map(comment).collect();
        order.shuffled(sections)
    }

    fn pool(&self, number: usize, pool: &Pool, order: &mut Order) -> String {
        let next = number + 1;
        let has_next = next < self.pools.len();
        let backends: Vec<String> = pool.backends.iter().map(|entry| backend(entry, order)).collect();
        let mut keys = vec![
            format!("backends = {}\n", order.list(backends)),
            format!("encapsulation = \"{}\"\n", self.encapsulation),
            "checks = [\"up\"]\n".to_owned(),
        ];
        if pool.slow_start {
            keys.push("slow_start = \"10s\"\n".to_owned());
        }
        if pool.fallback && has_next {
            keys.push(format!("fallback = {{ pool = \"p{next}\", below = 1, hold = \"1s\" }}\n"));
        } else if pool.nests_next && has_next {
            keys.push(format!("pools = [{{ pool = \"p{next}\", weight = 2 }}]\n"));
        }
        format!("[pool.p{number}]\n{}", order.shuffled(keys).concat())
    }

    fn vip(&self, number: usize, vip: &Vip, order: &mut Order) -> String {
        let addresses =
            order.list([format!("\"203.0.113.{number}\""), format!("\"2001:db8:f::{number:x}\"")]);
        let ports = order.list(vip.ports.iter().map(u16::to_string));
        let pool = vip.pool % self.pools.len();
        let service = |protocol: &str| {
            let hash = vip.hash;
            format!("{{ ports = {ports}, protocol = \"{protocol}\", pool = \"p{pool}\", hash = \"{hash}\" }}")
        };
        let services = order.list([service("tcp"), service("udp")]);
        let deny = order.list(vip.denies.iter().map(|net| format!("\"198.51.{net}.0/24\"")));
        format!("[vip.v{number}]\naddresses = {addresses}\nservices = {services}\ndeny = {deny}\n")
    }

    /// Writes the configuration of one machine to files and reads it. `order` determines how the
    /// text is split into files.
    fn written(&self, machine: &str, order: u64) -> Arc<Config> {
        self.written_with(machine, order, KEY)
    }

    fn written_with(&self, machine: &str, order: u64, key: &str) -> Arc<Config> {
        let (folder, mut order) = (Folder::new(), Order(order));
        let mut texts = vec![String::new(); 1 + order.next(3)];
        for section in self.sections(&mut order) {
            let at = order.next(texts.len());
            texts[at] += &section;
        }
        let letter = char::from(b'a' + order.next(26) as u8);
        for (number, text) in texts.iter().enumerate().skip(1) {
            fs::write(folder.0.join(format!("{letter}{number}.inc")), text).unwrap();
        }
        let include = if texts.len() > 1 { "include = [\"*.inc\"]\n" } else { "" };
        let own = if machine == "lb1" { 1 } else { 3 };
        let own = format!(
            "[machine.{machine}]\naddresses = [\"192.0.2.{own}\", \"2001:db8::{own}\"]\ninterfaces = [\"{machine}\"]\n"
        );
        let file = folder.0.join("main.toml");
        fs::write(&file, format!("{include}{}{own}", texts[0])).unwrap();
        match load_with(&file, &|_| Ok(key.to_owned())) {
            Ok((config, _)) => Arc::new(config),
            Err(problems) => panic!("{problems}"),
        }
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("sluicegate-digest-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A simulated machine with its controller and snapshot.
struct Machine {
    name: &'static str,
    controller: Controller,
    live: Arc<Snapshot>,
    digests: Digests,
    now: Duration,
}

impl Machine {
    fn start(name: &'static str, config: Arc<Config>, now: u64) -> Self {
        let now = Duration::from_secs(now);
        let (controller, live) = Controller::start(config, name, Arc::default(), now).unwrap();
        Self { name, controller, live: Arc::new(live), digests: Digests::default(), now }
    }

    /// Applies health check results to all backends. The backends in `down` fail, and all others
    /// pass.
    fn health(&mut self, down: &BTreeSet<u8>) {
        let all: Vec<u8> = (0..BACKENDS).collect();
        self.health_states(&all, down);
    }

    /// Applies the health check results of all backends in random order, and sometimes rebuilds
    /// tables in between.
    fn health_one_by_one(&mut self, order: &mut Order, down: &BTreeSet<u8>) {
        for number in order.shuffled(0..BACKENDS) {
            self.health_states(&[number], down);
            if order.next(2) == 0 {
                self.follow();
            }
        }
    }

    /// Applies health check results to the given backends. The backends in `down` fail, and the
    /// others pass.
    fn health_states(&mut self, backends: &[u8], down: &BTreeSet<u8>) {
        let state = |one: Watched| {
            let number = backends.iter().find(|number| *one.backend == format!("b{number}"))?;
            Some((one.key, if down.contains(number) { HealthState::Down } else { HealthState::Up }))
        };
        let changed: Vec<_> = self.controller.watched().into_iter().filter_map(state).collect();
        if let Some(next) = self.controller.health_states(&changed, &self.live, self.now).unwrap() {
            self.live = Arc::new(next);
        }
    }

    fn job(&mut self, config: Option<Arc<Config>>) {
        let (ways, states) = (Arc::new(Table::default()), self.live.states().to_vec());
        let done = self.controller.job(config, ways, states, self.now).unwrap().run();
        self.live = Arc::new(self.controller.finish(done, self.now).unwrap());
    }

    /// Advances the time by ten minutes, and rebuilds tables when necessary.
    fn rest(&mut self) {
        for _ in 0..20 {
            self.now += Duration::from_secs(30);
            if let Some(next) = self.controller.tick(&self.live, self.now).unwrap() {
                self.live = Arc::new(next);
            }
            self.follow();
        }
    }

    fn follow(&mut self) {
        if self.controller.wants_job() {
            self.job(None);
        }
    }

    fn view(&self) -> DigestView {
        self.digests.view(self.controller.config(), self.name, &self.live)
    }

    /// Returns the name of the backend that each test flow chooses.
    fn choices(&self, cluster: &Cluster) -> Vec<Option<Arc<str>>> {
        let flows = (0..cluster.vips.len()).flat_map(|vip| flows(&cluster.vips[vip], vip as u8));
        let choice = |flow: Flow| match self.live.decide(&flow) {
            Decision::Chosen { selection, .. } => {
                Some(Arc::clone(&self.live.slots()[selection.slot.0 as usize].backend))
            }
            Decision::NoBackend { .. } | Decision::Refused { .. } => None,
            other => panic!("{other:?}"),
        };
        flows.map(choice).collect()
    }
}

fn flows(vip: &Vip, number: u8) -> impl Iterator<Item = Flow> {
    (0..60_u16).flat_map(move |client| {
        vip.ports.iter().flat_map(move |port| {
            let (net, v6) = (client as u8 % 4, [0x2001, 0xdb8, 9, 0, 0, 0, 0, client]);
            let v4 = ([198, 51, net, client as u8], 1_000 + client);
            let f = [0x2001, 0xdb8, 0xf, 0, 0, 0, 0, u16::from(number)];
            [
                Flow::new(v4, ([203, 0, 113, number], *port), 6).unwrap(),
                Flow::new((v6, client), (f, *port), 17).unwrap(),
            ]
        })
    })
}

fn pool() -> impl Strategy<Value = Pool> {
    let backends = prop::collection::btree_map(0..BACKENDS, 1..4_u32, 1..6);
    (backends, any::<[bool; 3]>()).prop_map(|(backends, [slow_start, fallback, nests_next])| {
        let backends = backends.into_iter().collect();
        Pool { backends, slow_start, fallback, nests_next }
    })
}

fn vip() -> impl Strategy<Value = Vip> {
    let hash = prop::sample::select(vec!["5-tuple", "addresses", "source"]);
    (0..4_usize, hash, btree_set(80..90_u16, 1..4), btree_set(0..4_u8, 1..3))
        .prop_map(|(pool, hash, ports, denies)| Vip { pool, hash, ports, denies })
}

fn cluster() -> impl Strategy<Value = Cluster> {
    let sizes = prop::sample::select(vec![1_009, 2_003]);
    let kinds = prop::sample::select(vec!["gre", "ipip", "gue"]);
    (sizes, kinds, vec(pool(), 1..4), vec(vip(), 1..4))
        .prop_map(|(size, encapsulation, pools, vips)| Cluster { size, encapsulation, pools, vips, more: "" })
}

fn down() -> impl Strategy<Value = BTreeSet<u8>> {
    btree_set(0..BACKENDS, 0..usize::from(BACKENDS))
}

/// Creates one pool for each backend. Each pool has the next pool as its fallback. The VIP uses the
/// first pool.
fn of_one_backend_each(backends: &[u8]) -> Cluster {
    let pool = |number: &u8| Pool {
        backends: vec![(*number, 1)],
        slow_start: false,
        fallback: true,
        nests_next: false,
    };
    let vip = Vip { pool: 0, hash: "5-tuple", ports: [80].into(), denies: [9].into() };
    let pools = backends.iter().map(pool).collect();
    Cluster { size: 1_009, encapsulation: "gre", pools, vips: vec![vip], more: "" }
}

/// The backend of the added pool is down before and after its first check result.
#[test]
fn added_pool_without_serving_backend_uses_its_fallback() {
    let (earlier, cluster) = (of_one_backend_each(&[0]), of_one_backend_each(&[3, 0]));
    let mut started = Machine::start("lb1", cluster.written("lb1", 0), 0);
    let mut reloaded = Machine::start("lb2", earlier.written("lb2", 0), 0);
    reloaded.health(&BTreeSet::new());
    reloaded.job(Some(cluster.written("lb2", 0)));
    for machine in [&mut started, &mut reloaded] {
        machine.health(&[3].into());
        machine.rest();
        let backends = machine.choices(&cluster);
        assert!(backends.iter().any(Option::is_some), "{}", machine.name);
        assert!(backends.iter().flatten().all(|name| &**name == "b0"), "{}", machine.name);
    }
}

/// In both orders, the final state is the same: the only backend of the pool is down, and the
/// backend of its fallback pool is up.
#[test]
fn fallback_does_not_depend_on_the_order_of_results() {
    let cluster = of_one_backend_each(&[3, 0]);
    let views = [[3, 0], [0, 3]].map(|order| {
        let mut machine = Machine::start("lb1", cluster.written("lb1", 0), 0);
        for number in order {
            machine.health_states(&[number], &[3].into());
            machine.rest(); // tables are rebuilt long before the next result
        }
        let backends = machine.choices(&cluster);
        assert!(backends.iter().all(|name| name.as_deref() == Some("b0")), "{order:?}: {backends:?}");
        machine.view()
    });
    assert_eq!(views[0], views[1]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    /// Two machines reach the same configuration and health states with different histories. The
    /// second machine starts at a different time, with a different configuration and other health
    /// states. The file of the second machine has a different order and other includes.
    #[test]
    fn machines_with_different_history_choose_the_same_backends(
        cluster in cluster(),
        before in vec((cluster(), vec(down(), 0..3)), 0..3),
        seen in vec(down(), 0..3),
        last in down(),
        overrides: [u64; 3],
    ) {
        let mut one = Machine::start("lb1", cluster.written("lb1", overrides[0]), 0);
        one.health(&last);
        one.rest();
        let first = before.first().map_or(&cluster, |(first, _)| first);
        let mut other = Machine::start("lb2", first.written("lb2", overrides[1]), 1_000_000);
        for (earlier, downs) in &before {
            other.job(Some(earlier.written("lb2", overrides[2])));
            downs.iter().for_each(|down| other.health(down));
            // If a cached digest were not updated, the comparison at the end would fail.
            let _ = other.view();
        }
        other.job(Some(cluster.written("lb2", overrides[1] ^ 1)));
        let mut order = Order(overrides[2]);
        for down in seen.iter().chain([&last]) {
            other.health_one_by_one(&mut order, down);
            other.now += Duration::from_secs(1);
        }
        other.rest();
        prop_assert_eq!(one.choices(&cluster), other.choices(&cluster));
        prop_assert_eq!(one.view(), other.view());
    }

    /// Two configurations have the same digest if and only if they have the same content.
    /// Differences in notation do not matter.
    #[test]
    fn different_configurations_have_different_digests(
        one in cluster(), other in prop::option::of(cluster()), overrides: [u64; 2]
    ) {
        let other = other.unwrap_or_else(|| one.clone());
        let digests = [(&one, overrides[0]), (&other, overrides[1])]
            .map(|(cluster, order)| of_configuration(&cluster.written("lb1", order)));
        // If both files have the same order and machine, the `Config` values can be compared
        // directly.
        let same = one.written("lb1", 7) == other.written("lb1", 7);
        prop_assert_eq!(digests[0] == digests[1], same);
    }
}

fn two_pools() -> Cluster {
    let pool = |backends: &[(u8, u32)]| Pool {
        backends: backends.to_vec(),
        slow_start: false,
        fallback: false,
        nests_next: false,
    };
    let vip = |pool| Vip { pool, hash: "5-tuple", ports: [80].into(), denies: [9].into() };
    let pools = vec![pool(&[(1, 1), (2, 1), (3, 2)]), pool(&[(4, 1), (5, 1)])];
    Cluster { size: 1_009, encapsulation: "gre", pools, vips: vec![vip(0), vip(1)], more: "" }
}

fn settled(config: Arc<Config>, down: &[u8]) -> Machine {
    let mut machine = Machine::start("lb1", config, 0);
    machine.health(&down.iter().copied().collect());
    machine.rest();
    machine
}

#[test]
fn weight_name_size_policy_and_key_change_both_digests() {
    let base = two_pools();
    let of = |cluster: &Cluster| settled(cluster.written("lb1", 1), &[]).view();
    let known = of(&base);
    let mut changes: Vec<(&str, Cluster)> = Vec::new();
    let mut change = |what, how: &dyn Fn(&mut Cluster)| {
        let mut next = base.clone();
        how(&mut next);
        changes.push((what, next));
    };
    change("weight", &|next| next.pools[0].backends[2].1 = 3);
    change("all weights multiplied by the same factor", &|next| {
        next.pools[1].backends.iter_mut().for_each(|(_, weight)| *weight *= 2);
    });
    change("name", &|next| next.pools[0].backends[2].0 = 7);
    change("one more backend", &|next| next.pools[1].backends.push((6, 1)));
    change("size", &|next| next.size = 2_003);
    change("policy", &|next| next.vips[1].hash = "source");
    change("another pool for a VIP", &|next| next.vips[1].pool = 0);
    change("a VIP removed", &|next| drop(next.vips.pop()));
    for (what, next) in changes {
        let view = of(&next);
        assert_ne!(view.configuration, known.configuration, "{what}");
        assert_ne!(view.tables, known.tables, "{what}");
    }
    let rekeyed = settled(base.written_with("lb1", 1, &KEY.replace('f', "e")), &[]).view();
    assert_ne!(rekeyed.configuration, known.configuration);
    assert_ne!(rekeyed.tables, known.tables);
}

#[test]
fn hash_key_changes_both_digests_even_with_equal_tables() {
    // With only one backend, the table is the same for every hash key. The digests must still
    // differ, because flows are hashed differently.
    let mut cluster = two_pools();
    cluster.pools = vec![Pool { backends: vec![(1, 1)], ..cluster.pools[0].clone() }];
    let views =
        [KEY, &KEY.replace('f', "e")].map(|key| settled(cluster.written_with("lb1", 1, key), &[]).view());
    assert_ne!(views[0].configuration, views[1].configuration);
    assert_ne!(views[0].tables, views[1].tables);
    for view in views {
        let shown = format!("{view:?}");
        assert!(!shown.contains(&KEY[..8]) && !shown.contains(&hex(&[0, 17, 34])), "{shown}");
    }
}

#[test]
fn settings_of_one_machine_do_not_change_digests() {
    let mut base = two_pools();
    let known = settled(base.written("lb1", 1), &[]).view();
    base.more = "[io]\nbatch = 32\n[log]\nlevel = \"debug\"\n[admin]\nput = true\n[machine.spare]\naddresses = [\"192.0.2.77\"]\ninterfaces = [\"x\"]\n";
    assert_eq!(settled(base.written("lb1", 1), &[]).view(), known);
}

#[test]
fn flow_timeouts_change_only_the_configuration_digest() {
    let mut base = two_pools();
    let known = settled(base.written("lb1", 1), &[]).view();
    base.more = "flow_timeouts = { udp = \"90s\" }\n";
    let view = settled(base.written("lb1", 1), &[]).view();
    assert_ne!(view.configuration, known.configuration);
    assert_eq!(view.tables, known.tables);
}

#[test]
fn backend_without_flows_does_not_change_the_tables_digest() {
    let base = two_pools();
    let known = settled(base.written("lb1", 1), &[]).view();
    for newcomer in [0, 7] {
        let mut more = base.clone();
        more.pools[0].backends.push((newcomer, 1));
        let view = settled(more.written("lb1", 1), &[newcomer]).view();
        assert_eq!(view.tables, known.tables, "the added backend has no flows");
        assert_ne!(view.configuration, known.configuration);
    }
}

#[test]
fn health_state_changes_the_tables_digest_and_back() {
    let config = two_pools().written("lb1", 1);
    let mut machine = settled(Arc::clone(&config), &[]);
    let known = machine.view();
    machine.health(&[1].into());
    let rehashed = machine.view();
    machine.rest();
    let rebuilt = machine.view();
    machine.health(&[2].into());
    let other = machine.view();
    let tables = [&known, &rehashed, &rebuilt, &other].map(|view| view.tables.clone().unwrap());
    assert_eq!(tables.iter().collect::<BTreeSet<_>>().len(), 4, "{tables:?}");
    assert_eq!(
        rebuilt,
        settled(Arc::clone(&config), &[1]).view(),
        "equal to a machine on which the backend was never up"
    );
    machine.health(&BTreeSet::new());
    machine.rest();
    assert_eq!(machine.view(), known);
    assert_eq!(known.configuration, hex(&of_configuration(&config)));
}

#[test]
fn order_of_source_prefixes_does_not_change_the_digest() {
    let cluster = |prefixes: &'static str| Cluster {
        size: 101,
        encapsulation: "t",
        pools: vec![Pool { backends: vec![(1, 1)], slow_start: false, fallback: false, nests_next: false }],
        vips: vec![],
        more: prefixes,
    };
    let of = |prefixes| {
        let config = cluster(prefixes).written("lb1", 1);
        (hex(&of_configuration(&config)), config)
    };
    let one = of(
        "[encapsulation.t]\nkind = \"gre\"\nsource_prefixes = [\"198.51.100.0/28\", \"2001:db8:5::/64\"]\n",
    );
    let other = of(
        "[encapsulation.t]\nkind = \"gre\"\nsource_prefixes = [\"2001:db8:5::/64\", \"198.51.100.0/28\"]\n",
    );
    assert_eq!(one.0, other.0);
    assert_eq!(one.1.pools(), other.1.pools());
    let another = of(
        "[encapsulation.t]\nkind = \"gre\"\nsource_prefixes = [\"2001:db8:5::/64\", \"198.51.100.0/29\"]\n",
    );
    assert_ne!(one.0, another.0);
}
