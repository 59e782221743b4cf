//! Tests that the result of a check through a VIP applies only to one address family of this VIP.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

/// The VIP `www` has an IPv4 address. The VIP `api` has an IPv4 and an IPv6 address.
const VIPS: &str = r#"
[vip.www]
addresses = ["203.0.113.10"]
services = [{ ports = [80], protocol = "tcp", pool = "web" }]
[vip.api]
addresses = ["203.0.113.20", "2001:db8:f::20"]
services = [{ ports = [80], protocol = "tcp", pool = "web" }]
"#;
const NEW: &str = r#"
[vip.new]
addresses = ["203.0.113.30"]
services = [{ ports = [80], protocol = "tcp", pool = "web" }]
"#;
const ADDRESSES: [&str; 3] = ["203.0.113.10", "203.0.113.20", "2001:db8:f::20"];

impl Bed {
    /// Applies a check result for a backend. `through` is the VIP address of the check, or `None`
    /// for a direct check.
    fn find(&mut self, backend: &str, through: Option<&str>, state: HealthState) {
        let through: Option<IpAddr> = through.map(|address| address.parse().unwrap());
        let watched = self.controller.watched().into_iter().filter(|one| {
            one.backend.starts_with(backend) && one.key.through.as_ref().map(|way| way.vip) == through
        });
        let changed: Vec<_> = watched.map(|one| (one.key, state)).collect();
        assert!(!changed.is_empty(), "{backend} {through:?}");
        if let Some(next) = self.controller.health_states(&changed, &self.live, Duration::ZERO).unwrap() {
            self.live = next;
        }
    }

    /// Returns the names of the backends that receive new flows to an address.
    fn at(&self, address: &str) -> Vec<String> {
        let address: IpAddr = address.parse().unwrap();
        let source =
            if address.is_ipv4() { "198.51.100.7" } else { "2001:db8:c::7" }.parse::<IpAddr>().unwrap();
        let flows = (0..500).map(|port| Flow::new((source, port), (address, 80), 6).unwrap());
        let slots = flows.filter_map(|flow| match self.live.decide(&flow) {
            Decision::Chosen { selection, .. } => Some(selection.slot.0 as usize),
            _ => None,
        });
        let names = slots.map(|slot| self.live.slots()[slot].backend.to_string());
        names.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

fn three() -> Vec<String> {
    ["web-1", "web-2", "web-3"].map(str::to_owned).to_vec()
}

fn up(text: &str) -> Bed {
    let mut bed = Bed::new(config(text));
    bed.say("web", HealthState::Up, 0);
    bed.settle(0);
    bed
}

// Promise: check-isolation
#[test]
fn vip_missing_on_backends_does_not_affect_other_vips() {
    let pool = pool("web", 1, 3, "checks = [\"tcp\", \"vip\"]");
    let mut bed = up(&(pool.clone() + VIPS));
    bed.job(Some(config(&(pool.clone() + VIPS + NEW))), 1);
    assert_eq!(ADDRESSES.map(|address| bed.at(address)), [three(), three(), three()]);
    assert_eq!(bed.at("203.0.113.30"), [""; 0], "no check result yet");
    bed.find("web", Some("203.0.113.30"), HealthState::Down);
    bed.settle(1);
    assert_eq!(ADDRESSES.map(|address| bed.at(address)), [three(), three(), three()]);
    assert_eq!(bed.at("203.0.113.30"), [""; 0]);
    bed.find("web", Some("203.0.113.30"), HealthState::Up);
    bed.settle(1);
    assert_eq!(bed.at("203.0.113.30"), three());
    // The check through one address fails on one backend.
    bed.find("web-2", Some(ADDRESSES[2]), HealthState::Down);
    bed.settle(2);
    let two = vec!["web-1".to_owned(), "web-3".into()];
    assert_eq!(ADDRESSES.map(|address| bed.at(address)), [three(), three(), two.clone()]);
    bed.find("web-1", None, HealthState::Down);
    bed.settle(3);
    let (last, both) = (vec!["web-3".to_owned()], vec!["web-2".to_owned(), "web-3".into()]);
    assert_eq!(
        ADDRESSES.map(|address| bed.at(address)),
        [both.clone(), both, last],
        "a direct check applies to all VIPs"
    );
}

#[test]
fn diff_lists_addresses_that_are_checked_for_the_first_time() {
    let said = |old: &str, new: &str| {
        let (old, new) = (config(old), config(new));
        let running = Running::of(&old, "lb1");
        let compiled = [&old, &new].map(|config| compile::compile_file(config, "lb1").unwrap().index);
        let [old, new] =
            [(&old, &compiled[0]), (&new, &compiled[1])].map(|(config, index)| Side { config, index });
        changes(&running, old, new, "lb1")
            .sentences
            .into_iter()
            .filter(|line| line.contains("first time"))
            .collect::<Vec<_>>()
    };
    let (checked, plain) = (pool("web", 1, 3, "checks = [\"vip\"]"), pool("web", 1, 3, "checks = [\"tcp\"]"));
    let line = |vip: &str, addresses: &str| {
        format!("vip {vip}: backends of pool web are checked through {addresses} for the first time")
    };
    let (before, after) = (checked.clone() + VIPS, checked.clone() + VIPS + NEW);
    assert_eq!(said(&before, &after), [line("new", "203.0.113.30")]);
    let both = [line("api", "203.0.113.20, 2001:db8:f::20"), line("www", "203.0.113.10")];
    assert_eq!(said(&(plain + VIPS), &before), both);
    assert_eq!(said(&after, &before), [""; 0]);
}

#[test]
fn rows_show_the_state_for_each_vip_and_family() {
    let mut bed = up(&(pool("web", 1, 3, "checks = [\"tcp\", \"vip\"]") + VIPS));
    bed.find("web-2", Some(ADDRESSES[2]), HealthState::Down);
    bed.settle(1);
    let rows = bed.controller.backend_rows(&bed.live, |_| Default::default(), None, &[]);
    assert_eq!(rows.len(), 3, "each membership appears once");
    let less: Vec<_> =
        rows.iter().map(|row| row.less_for.iter().map(|one| &*one.vip).collect::<Vec<_>>()).collect();
    assert_eq!(less, [vec![], vec!["api"], vec![]]);
    assert_eq!(rows[1].checks.len(), 4, "one direct check and three through VIPs: {:?}", rows[1].checks);
    let vips = bed.controller.vip_rows(&bed.live, |_| Default::default());
    let serving = |row: &admin::view::ServiceRow| {
        (row.serving, row.families.iter().map(|family| family.serving).collect::<Vec<_>>())
    };
    let found: Vec<_> = vips.iter().map(|vip| (&*vip.name, serving(&vip.services[0]))).collect();
    assert_eq!(found, [("api", (2, vec![3, 2])), ("www", (3, vec![]))]);
    let (totals, down) = bed.controller.state_totals(&bed.live);
    assert_eq!((totals.serving, totals.down, down), (3, 0, vec![]));
}

#[test]
fn removed_backend_is_listed_and_counted_once() {
    let of = |last| pool("web", 1, last, "checks = [\"tcp\", \"vip\"]") + VIPS;
    let mut bed = up(&of(3));
    bed.job(Some(config(&of(2))), 1);
    assert!(bed.live.slots().iter().filter(|slot| &*slot.backend == "web-3").count() > 1);
    let rows = bed.controller.backend_rows(&bed.live, |_| Default::default(), None, &[]);
    let names: Vec<_> = rows.iter().map(|row| (&*row.name, row.why)).collect();
    assert_eq!(names, [("web-1", None), ("web-2", None), ("web-3", Some(admin::view::Why::Removed))]);
    let (totals, _) = bed.controller.state_totals(&bed.live);
    assert_eq!((totals.serving, totals.draining), (2, 1));
    assert_eq!(bed.controller.index().backend_count(), 2, "each backend is counted once for all VIPs");
}

#[test]
fn added_vip_check_keeps_backends_until_its_result() {
    let plain = pool("web", 1, 3, "checks = [\"tcp\"]") + VIPS;
    let mut bed = up(&plain);
    bed.job(Some(config(&(pool("web", 1, 3, "checks = [\"tcp\", \"vip\"]") + VIPS + NEW))), 1);
    assert_eq!(ADDRESSES.map(|address| bed.at(address)), [three(), three(), three()]);
    assert_eq!(bed.at("203.0.113.30"), [""; 0], "a new VIP has no serving backend");
    let through = |bed: &Bed| {
        let watched = bed.controller.watched().into_iter();
        let of = watched.filter_map(|one| Some((one.key.through?.vip.to_string(), one.serving)));
        of.collect::<BTreeMap<_, _>>()
    };
    let serving =
        [("2001:db8:f::20", true), ("203.0.113.10", true), ("203.0.113.20", true), ("203.0.113.30", false)];
    assert_eq!(through(&bed), serving.map(|(address, serving)| (address.to_owned(), serving)).into());
    // After a reload has removed the checks through VIPs, one state applies to all VIPs.
    bed.find("web", Some(ADDRESSES[0]), HealthState::Up);
    bed.job(Some(config(&plain)), 2);
    assert_eq!(ADDRESSES.map(|address| bed.at(address)), [three(), three(), three()]);
}

#[test]
fn family_without_machine_address_follows_the_other_family() {
    let text = format!("{HEAD}{}{VIPS}", pool("web", 1, 3, "checks = [\"vip\"]"));
    let mut bed = Bed::new(parse_config(&text.replace(", \"2001:db8::1\"", "")));
    assert!(bed.controller.watched().iter().all(|one| one.key.through.as_ref().unwrap().vip.is_ipv4()));
    bed.say("web", HealthState::Up, 0);
    bed.find("web-1", Some(ADDRESSES[1]), HealthState::Down);
    bed.settle(0);
    let two = vec!["web-2".to_owned(), "web-3".into()];
    assert_eq!(ADDRESSES.map(|address| bed.at(address)), [three(), two.clone(), two]);
}

#[test]
fn fallback_is_active_only_for_affected_addresses() {
    let pools =
        pool("web", 1, 3, "checks = [\"vip\"]\nfallback = { pool = \"spare\", below = 2, hold = \"10s\" }")
            + &pool("spare", 2, 1, "checks = [\"tcp\"]");
    let mut bed = up(&(pools + VIPS));
    bed.say("spare", HealthState::Up, 0);
    bed.settle(0);
    for backend in ["web-1", "web-2"] {
        bed.find(backend, Some(ADDRESSES[1]), HealthState::Down);
    }
    bed.settle(1);
    assert_eq!(ADDRESSES.map(|address| bed.at(address)), [three(), vec!["spare-1".to_owned()], three()]);
}

#[test]
fn health_state_is_applied_quickly_with_1000_vips() {
    let mut text = pool("web", 1, 100, "checks = [\"tcp\", \"vip\"]");
    for n in 0..1_000 {
        text += &format!(
            "[vip.v{n}]\naddresses = [\"203.0.113.{}\"]\nservices = [{{ ports = [{}], protocol = \"tcp\", pool = \"web\" }}]\n",
            n % 250,
            1000 + n
        );
    }
    let started = Instant::now();
    let mut bed = Bed::new(config(&text));
    println!("compiled in {:?}", started.elapsed());
    bed.say("web", HealthState::Up, 0);
    let started = Instant::now();
    bed.settle(0);
    println!("tables for 1,000 VIPs with 100 backends: {:?}", started.elapsed());
    let targets: BTreeMap<_, _> =
        bed.targets("web-77").into_iter().map(|key| (key.through.as_ref().map(|way| way.vip), key)).collect();
    let (straight, through) = (&targets[&None], targets.values().last().unwrap());
    for target in [through, straight] {
        let changed = [(target.clone(), HealthState::Down)];
        let started = Instant::now();
        let next = bed.controller.health_states(&changed, &bed.live, Duration::ZERO).unwrap();
        println!("health state change with 1,000 VIPs and 100 backends: {:?}", started.elapsed());
        bed.live = next.unwrap();
    }
    assert_eq!(bed.state("web-77"), SlotState::Down);
}

/// Generates a random check result: the number of the backend, the index of the VIP address (`None`
/// for a direct check), and whether the check passes.
fn finding() -> impl Strategy<Value = (usize, Option<usize>, bool)> {
    (1..4usize, proptest::option::of(0..3usize), any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    // Promise: check-isolation
    /// An address is served only by the backends that pass their direct checks and their checks
    /// through this address.
    #[test]
    fn address_is_served_if_direct_and_vip_checks_pass(findings in prop::collection::vec(finding(), 1..24)) {
        let mut bed = up(&(pool("web", 1, 3, "checks = [\"tcp\", \"vip\"]") + VIPS));
        let mut passes = BTreeMap::new();
        for (backend, through, pass) in findings {
            let state = if pass { HealthState::Up } else { HealthState::Down };
            bed.find(&format!("web-{backend}"), through.map(|at| ADDRESSES[at]), state);
            passes.insert((backend, through), pass);
            bed.settle(0);
            for (at, address) in ADDRESSES.iter().enumerate() {
                let all = |n: &usize| [None, Some(at)].iter().all(|way| passes.get(&(*n, *way)) != Some(&false));
                let served: Vec<String> = (1..4).filter(all).map(|n| format!("web-{n}")).collect();
                prop_assert_eq!(bed.at(address), served, "{}", address);
            }
        }
    }

    // Promise: max-down
    /// If more backends fail than `max_down` allows, the last health states stay in effect.
    #[test]
    fn last_states_stay_beyond_max_down(
        findings in prop::collection::vec((1..7usize, any::<bool>(), prop::bool::weighted(0.1)), 1..40), percent in 1..101usize,
    ) {
        let text = pool("web", 1, 6, &format!("checks = [\"tcp\"]\nmax_down = \"{percent}%\"")) + VIPS;
        let mut bed = up(&text);
        let (mut failing, mut down) = (BTreeSet::new(), BTreeSet::new());
        for (backend, pass, reload) in findings {
            let name = format!("web-{backend}");
            let state = if pass { HealthState::Up } else { HealthState::Down };
            bed.find(&name, None, state);
            if pass { failing.remove(&name) } else { failing.insert(name) };
            let exceeded = failing.len() > 6 * percent / 100;
            down = if exceeded { &down & &failing } else { failing.clone() };
            if reload {
                bed.job(Some(config(&text)), 0);
            }
            bed.settle(0);
            for n in 1..7 {
                let name = format!("web-{n}");
                let wanted = if down.contains(&name) { SlotState::Down } else { SlotState::Serving };
                prop_assert_eq!(bed.state(&name), wanted, "{} of {:?}", name, failing);
            }
            prop_assert_eq!(bed.controller.held_pools().len(), usize::from(exceeded));
        }
    }
}
