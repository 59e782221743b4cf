//! Tests of requests for keys on three servers. The client must get the same reply as from a single
//! server with all keys, or no reply.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testbed::{BedSpec, Process, QueryClient, VIP_V4, VIP_V6, eventually, start_memcached_at};

use crate::lossy_network::LossyNetwork;
use crate::scene::{BOUND, PATIENT, PORT, SILENCE, Scene, config};

const KEYS: usize = 90;

fn value(key: usize) -> String {
    // The values have different lengths, up to the size of one datagram.
    format!("value of {key} {}", "v".repeat(key * 14))
}

pub(crate) fn store(scene: &Scene) {
    let client = scene.client(true);
    for key in 0..KEYS {
        let value = value(key);
        let set = format!("set key{key} {key} 0 {}\r\n{value}\r\n", value.len());
        assert_eq!(scene.ask(&client, set.as_bytes()), b"STORED\r\n");
    }
}

pub(crate) fn get(verb: &str, keys: &[usize]) -> Vec<u8> {
    let names: Vec<String> = keys.iter().map(|key| format!("key{key}")).collect();
    format!("{verb} {}\r\n", names.join(" ")).into_bytes()
}

/// Returns the reply of a single server that has all keys. Keys with the index `KEYS` or higher do
/// not exist. `versions` contains the CAS values for `gets`.
pub(crate) fn wanted(keys: &[usize], versions: Option<&[String]>) -> Vec<u8> {
    let mut said = Vec::new();
    for &key in keys.iter().filter(|key| **key < KEYS) {
        let value = value(key);
        let version = versions.map_or(String::new(), |versions| format!(" {}", versions[key]));
        said.extend(format!("VALUE key{key} {key} {}{version}\r\n{value}\r\n", value.len()).into_bytes());
    }
    said.extend(b"END\r\n");
    said
}

/// Returns a list of keys, of which some do not exist and some occur twice.
fn list(round: usize, longest: usize) -> Vec<usize> {
    let count = (2 + round % 31).min(longest);
    (0..count).map(|n| (round * 37 + n * (7 + round % 5)) % (KEYS + 6)).collect()
}

/// Lists the keys on each server by querying each server directly.
fn held(scene: &Scene) -> Vec<Vec<usize>> {
    let has = |server: &QueryClient, key: &usize| {
        server.ask_within(&get("get", &[*key]), BOUND).unwrap() != b"END\r\n"
    };
    let of = |backend| (0..KEYS).filter(|key| has(&scene.beside(backend), key)).collect();
    (0..scene.bed.backends.len()).map(of).collect()
}

/// Returns lists whose keys belong to several servers. The balancer forwards other lists unchanged,
/// and memcached then sends one message per hit.
pub(crate) fn lists_apart(scene: &Scene, rounds: usize, longest: usize) -> Vec<Vec<usize>> {
    let held = held(scene);
    let has_any = |held: &&Vec<usize>, keys: &[usize]| keys.iter().any(|key| held.contains(key));
    let is_apart = |keys: &Vec<usize>| held.iter().filter(|held| has_any(held, keys)).count() > 1;
    (0..rounds).map(|round| list(round, longest)).filter(is_apart).collect()
}

pub(crate) fn ended(scene: &Scene, name: &str) -> u64 {
    scene.balancer.counters().unwrap().over_threads(&[name])
}

// Promise: gather-replies
#[test]
fn gather_from_three_servers_keeps_key_order() {
    let spec = BedSpec { queues: 2, ..BedSpec::default() };
    let server = |bed: &testbed::Bed, host: &testbed::Host| Some(crate::scene::memcached(bed, host));
    let scene = Scene::with(&spec, |bed| config(bed, PATIENT), server);
    store(&scene);
    let client = scene.client(true);
    let version = |key| {
        let said = String::from_utf8(scene.ask(&client, &get("gets", &[key]))).unwrap();
        said.lines().next().unwrap().split(' ').nth(4).unwrap().to_owned()
    };
    let versions: Vec<String> = (0..KEYS).map(version).collect();
    let lists = lists_apart(&scene, 120, 32);
    for (round, keys) in lists.iter().enumerate() {
        let client = scene.client(round % 2 == 0);
        let (verb, versions) = if round % 3 == 0 { ("gets", Some(&versions[..])) } else { ("get", None) };
        let said = client.ask_whole(&get(verb, keys), BOUND);
        let said = said.unwrap_or_else(|| panic!("no reply to {keys:?}\n{}", scene.diagnosis()));
        assert_eq!(said.escape_ascii().to_string(), wanted(keys, versions).escape_ascii().to_string());
    }
    assert!(lists.len() > 90, "{lists:?}");
    assert_eq!(ended(&scene, "gathers_begun"), lists.len() as u64, "{}", scene.diagnosis());
    assert_eq!(ended(&scene, "gathers_answered"), lists.len() as u64);
    // Some server responses must have arrived at a packet thread that did not handle the request.
    assert!(ended(&scene, "to_threads") > 0, "{}", scene.diagnosis());
    scene.drops_become(&[]);
}

#[test]
fn gather_of_quiet_gets_has_one_reply() {
    let scene = Scene::new(|bed| config(bed, PATIENT));
    store(&scene);
    for (round, keys) in lists_apart(&scene, 40, 32).iter().enumerate() {
        let mut batch = Vec::new();
        let (mut wanted, noop) = (Vec::new(), [0xee, 0xee, 0, 1]);
        for (n, key) in (0_u8..).zip(keys) {
            let (name, opcode) = (format!("key{key}"), if n % 2 == 0 { 0x09 } else { 0x0d });
            let length = u8::try_from(name.len()).unwrap();
            batch.extend([0x80, opcode, 0, length, 0, 0, 0, 0, 0, 0, 0, length, 0xab, 0, 0, n]);
            batch.extend([&[0; 8], name.as_bytes()].concat());
            if *key < KEYS {
                wanted.push((opcode, n, if opcode == 0x0d { name } else { String::new() }, value(*key)));
            }
        }
        batch.extend([&[0x80, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &noop, &[0; 8]].concat());
        let said = scene.client(round % 2 == 0).ask_whole(&batch, BOUND);
        let said = said.unwrap_or_else(|| panic!("no reply to {keys:?}\n{}", scene.diagnosis()));
        let (mut rest, mut found) = (&said[..], Vec::new());
        while rest[1] != 0x0a {
            let (key, body) = (usize::from(rest[3]), u32::from_be_bytes(rest[8..12].try_into().unwrap()));
            let behind = &rest[24..24 + usize::try_from(body).unwrap()];
            assert_eq!(
                (rest[0], rest[4], &rest[5..8], &rest[12..15]),
                (0x81, 4, &[0; 3][..], &[0xab, 0, 0][..])
            );
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            found.push((rest[1], rest[15], text(&behind[4..4 + key]), text(&behind[4 + key..])));
            rest = &rest[24 + behind.len()..];
        }
        assert_eq!((found, rest.len(), &rest[12..16]), (wanted, 24, &noop[..]));
    }
    scene.drops_become(&[]);
}

#[test]
fn gather_with_hanging_server_times_out_or_misses() {
    for missing in ["silent", "miss"] {
        let mut scene = Scene::new(|bed| {
            let more = format!(", gather = {{ timeout = \"1s\", missing = \"{missing}\" }}");
            let mut config = config(bed, &more);
            // Health checks must not mark the hanging server as down, so the test raises `fall`:
            // the outage is longer than the usual number of failed checks takes.
            config.more = config.more.replace("fall = 4", "fall = 600");
            config
        });
        store(&scene);
        let held = held(&scene);
        assert!(held.iter().all(|keys| keys.len() > 3), "{held:?}");
        let client = scene.client(true);
        let keys = [held[0][0], held[1][0], held[2][0], held[1][1]];
        let whole = wanted(&keys, None);
        let answer = |scene: &Scene| {
            client.ask_whole(&get("get", &keys), BOUND).unwrap_or_else(|| panic!("{}", scene.diagnosis()))
        };
        assert_eq!(answer(&scene), whole);

        scene.servers[1].as_mut().unwrap().pause().unwrap();
        if missing == "silent" {
            assert_eq!(client.ask_whole(&get("get", &keys), SILENCE), None);
            let is_over = || (ended(&scene, "gathers_timed_out") == 1).then_some(());
            assert!(eventually(BOUND, is_over).is_some(), "{}", scene.diagnosis());
        } else {
            assert_eq!(answer(&scene), wanted(&[keys[0], keys[2]], None));
            assert_eq!(ended(&scene, "gathers_incomplete"), 1);
        }
        // Keys on the other servers remain available.
        let others = [held[0][0], held[2][0]];
        assert_eq!(client.ask_whole(&get("get", &others), BOUND).unwrap(), wanted(&others, None));

        scene.servers[1].as_mut().unwrap().signal(Signal::SIGCONT).unwrap();
        // The server resumes and answers the two requests for which the balancer no longer waits.
        // It also answers expired health checks. All answers come from the VIP, and the balancer
        // rejects answers to expired health checks with ICMP port unreachable.
        scene.drops_become_beside(&[("kv_answer_late", 2)], &["icmp_quote"]);
        let is_whole = || (client.ask_whole(&get("get", &keys), BOUND)? == whole).then_some(());
        assert!(eventually(BOUND, is_whole).is_some(), "{}", scene.diagnosis());
    }
}

/// Prints how late a sleeping thread wakes up. On a busy machine the reply may be late, but it must
/// never be early.
#[test]
fn gather_timeout_wakes_sleeping_thread() {
    const ROUNDS: usize = 50;
    const TIMEOUT: Duration = Duration::from_millis(20);
    let mut scene = Scene::new(|bed| {
        let mut config = config(bed, ", gather = { timeout = \"20ms\", missing = \"miss\" }");
        // Health checks must not mark the hanging server as down, and must not wake up the packet
        // thread.
        config.more =
            config.more.replace("fall = 4", "fall = 600").replace("interval = \"1s\"", "interval = \"60s\"");
        config
    });
    store(&scene);
    let held = held(&scene);
    let keys = [held[0][0], held[1][0]];
    scene.servers[1].as_mut().unwrap().pause().unwrap();
    let iterations =
        |scene: &Scene| scene.balancer.counters().unwrap().over_threads(&["socket", "iterations"]);
    let (client, before) = (scene.client(true), iterations(&scene));
    let (mut late, mut rounds) = (Vec::new(), 0);
    while late.len() < ROUNDS {
        let sent = Instant::now();
        let said = client.ask_whole(&get("get", &keys), BOUND);
        let took = sent.elapsed();
        rounds += 1;
        let over =
            took.checked_sub(TIMEOUT).unwrap_or_else(|| panic!("response came too early, after {took:?}"));
        let is_whole = said.as_deref() == Some(&wanted(&keys[..1], None)[..]);
        // On a busy machine, the other server's response may be too late as well.
        assert!(is_whole || said.as_deref() == Some(b"END\r\n"), "{said:?}\n{}", scene.diagnosis());
        if is_whole {
            late.push(over);
        }
        assert!(
            rounds < 20 * ROUNDS,
            "only {} of {rounds} responses have the values of the other server",
            late.len()
        );
    }
    late.sort_unstable();
    let iterations = (iterations(&scene) - before) / rounds as u64;
    println!(
        "median delay {:?}, maximum of {ROUNDS} rounds {:?}, {iterations} thread iterations per request in {rounds} requests",
        late[late.len() / 2],
        late[late.len() - 1]
    );
    assert_eq!(ended(&scene, "gathers_incomplete"), rounds as u64);
    // A thread that spins would make more iterations within a millisecond.
    assert!(iterations < 20_000, "the thread did not sleep");
}

#[test]
fn gather_uses_next_server_after_a_failure() {
    // Values on a replacement server do not expire in this test, because the machine may pause.
    let kv = format!("{PATIENT}, failover = {{ to = \"next\", ttl = \"0s\" }}");
    let mut scene = Scene::new(|bed| config(bed, &kv));
    store(&scene);
    let held = held(&scene);
    let keys = [held[0][0], held[1][0], held[2][0]];
    let client = scene.client(true);
    drop(scene.servers[1].take());
    scene.serving(2);
    let said = || {
        client
            .ask_whole(&get("get", &keys), SILENCE)
            .filter(|said| *said == wanted(&[keys[0], keys[2]], None))
    };
    assert!(eventually(BOUND, said).is_some(), "{}", scene.diagnosis());
    let value = value(keys[1]);
    let set = format!("set key{} {} 0 {}\r\n{value}\r\n", keys[1], keys[1], value.len());
    assert_eq!(scene.ask(&client, set.as_bytes()), b"STORED\r\n");
    let said = client.ask_whole(&get("get", &keys), BOUND).unwrap().escape_ascii().to_string();
    assert_eq!(said, wanted(&keys, None).escape_ascii().to_string(), "{}", scene.diagnosis());
}

/// Starts a server only at its own address. The simulated lossy network listens at the VIPs.
fn behind_noise(_: &testbed::Bed, host: &testbed::Host) -> Option<Process> {
    Some(start_memcached_at(host, [host.v4.into()], &[]).unwrap())
}

// Promise: gather-replies
#[test]
fn gather_on_lossy_network_is_correct_or_missing() {
    let mut networks = Vec::new();
    for missing in ["silent", "miss"] {
        networks.clear();
        let scene = Scene::with(
            &BedSpec::default(),
            |bed| {
                for (seed, host) in (1..).zip(&bed.backends) {
                    let server = SocketAddr::new(host.v4.into(), PORT);
                    for (family, vip) in (0..).zip([VIP_V4, VIP_V6]) {
                        let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed * 2 + family);
                        networks.push(LossyNetwork::start(
                            &host.ns,
                            SocketAddr::new(vip, PORT),
                            server,
                            seed,
                        ));
                    }
                }
                let more = format!(
                    ", rejoin = \"serve\", gather = {{ timeout = \"200ms\", missing = \"{missing}\" }}"
                );
                let mut config = config(bed, &more);
                config.services.retain(|service| service.protocol == "udp");
                config.more = config.more.replace("fall = 4", "fall = 600");
                config
            },
            behind_noise,
        );
        store(&scene);
        let (mut whole, mut lost) = (0, 0);
        let lists = lists_apart(&scene, 120, 12);
        for (round, keys) in lists.iter().enumerate() {
            let client = scene.client(round % 2 == 0);
            let Some(said) = client.ask_whole(&get("get", keys), SILENCE) else {
                lost += 1;
                continue;
            };
            if said == wanted(keys, None) {
                whole += 1;
                continue;
            }
            // With `missing = "miss"`, the reply can lack some keys, but the rest must be correct.
            // With `missing = "silent"`, the reply must contain all keys.
            assert_eq!(missing, "miss", "{keys:?}: {}", said.escape_ascii());
            let text = String::from_utf8(said.clone()).unwrap();
            let there: Vec<usize> =
                keys.iter().copied().filter(|key| text.contains(&format!("VALUE key{key} "))).collect();
            assert_eq!(said.escape_ascii().to_string(), wanted(&there, None).escape_ascii().to_string());
        }
        let counters = scene.balancer.counters().unwrap();
        let drops = counters.drops();
        println!("missing = {missing}, {whole} complete replies, {lost} requests without a reply, {drops:?}");
        assert!(whole > 20, "{}", scene.diagnosis());
        let has = |reason: &str| drops.iter().any(|(name, count)| name == reason && *count > 0);
        for reason in ["kv_answer_late", "kv_answer_nonce", "kv_answer_source"] {
            assert!(has(reason), "{reason}\n{}", scene.diagnosis());
        }
        assert!(drops.iter().all(|(name, _)| name.starts_with("kv_answer_")), "{drops:?}");
        let of = |name| counters.over_threads(&[name]);
        let ends = ["gathers_answered", "gathers_incomplete", "gathers_timed_out"].map(of);
        assert_eq!(ends.iter().sum::<u64>(), of("gathers_begun"), "{ends:?}\n{}", scene.diagnosis());
    }
}
