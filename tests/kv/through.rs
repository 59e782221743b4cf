//! Requests that pass both ways: servers that know no VIP, behind a router, and real clients of them.

use std::net::{IpAddr, SocketAddr};

use testbed::{
    Asker, Bed, BedSpec, Encapsulation, Host, LbConfig, PoolMember, Process, VIP_V4, VIP_V6, eventually,
    start_memcached_at,
};

use crate::clients::memcaslap_finds_all;
use crate::scene::{BOUND, PATIENT, PORT, SILENCE, Scene, config};

/// Only requests for addresses of its own find such a server.
fn at_own_address(_: &Bed, host: &Host) -> Option<Process> {
    let server = start_memcached_at(host, [host.v6.into(), host.v4.into()], &[]).unwrap();
    let at_vip = Asker::new(&host.ns, SocketAddr::new(VIP_V4, PORT));
    assert_eq!(at_vip.ask_within(b"version\r\n", SILENCE), None);
    Some(server)
}

/// One VIP of a family, and backends of the same.
pub(crate) fn through(bed: &Bed, ipv4: bool, kv: &str) -> LbConfig {
    let mut config = config(bed, &format!(", path = \"through\"{kv}{PATIENT}"));
    config.encapsulation = Encapsulation::L2;
    config.services.truncate(1);
    config.more = config.more.replace("via = \"vip\"\n", "");
    config.vips = vec![if ipv4 { VIP_V4 } else { VIP_V6 }];
    let address = |host: &Host| if ipv4 { IpAddr::from(host.v4) } else { host.v6.into() };
    for (member, host) in config.pool.iter_mut().zip(&bed.backends) {
        *member = PoolMember { address: address(host), ..member.clone() };
    }
    config
}

fn scene(ipv4: bool, queues: u32, kv: &str) -> Scene {
    let spec = BedSpec { queues, ..BedSpec::default() };
    Scene::with(&spec, |bed| through(bed, ipv4, kv), at_own_address)
}

fn count(scene: &Scene, name: &str) -> u64 {
    scene.balancer.counters().unwrap().over_threads(&[name])
}

#[test]
fn clients_of_a_vip_that_no_server_has_find_all_that_they_stored() {
    for ipv4 in [true, false] {
        let scene = scene(ipv4, 2, SLOW);
        let value = |key: usize| format!("value of {key} {}", "v".repeat(key * 14));
        for key in 0..90 {
            let value = value(key);
            let set = format!("set key{key} {key} 0 {}\r\n{value}\r\n", value.len());
            assert_eq!(scene.ask(&scene.client(ipv4), set.as_bytes()), b"STORED\r\n");
        }
        // Longer than a datagram.
        let (client, chunk) = (scene.client(ipv4), "c".repeat(1_000));
        assert_eq!(scene.ask(&client, b"set long 0 0 0\r\n\r\n"), b"STORED\r\n");
        for _ in 0..10 {
            let append = format!("append long 0 0 1000\r\n{chunk}\r\n");
            assert_eq!(scene.ask(&client, append.as_bytes()), b"STORED\r\n");
        }
        let whole = client.ask_whole(b"get long\r\n", BOUND).unwrap();
        assert_eq!(whole, format!("VALUE long 0 10000\r\n{}\r\nEND\r\n", chunk.repeat(10)).into_bytes());
        for key in 0..90 {
            let value = value(key);
            let said = scene.client(ipv4).ask_whole(format!("get key{key}\r\n").as_bytes(), BOUND).unwrap();
            let wanted = format!("VALUE key{key} {key} {}\r\n{value}\r\nEND\r\n", value.len());
            assert_eq!(said.escape_ascii().to_string(), wanted.as_bytes().escape_ascii().to_string());
        }
        // Each server has some of the keys, and of several the machine makes one reply.
        let counters = scene.balancer.counters().unwrap();
        let shares = scene.bed.backends.iter().map(|host| counters.to_backend(&host.name));
        assert!(shares.clone().all(|packets| packets > 10), "{:?}", shares.collect::<Vec<_>>());
        let said = client.ask_whole(b"get key1 key2 nokey key3 key4 key5\r\n", BOUND).unwrap();
        let wanted: String = (1..6)
            .map(|key| format!("VALUE key{key} {key} {}\r\n{}\r\n", value(key).len(), value(key)))
            .collect();
        assert_eq!(
            said.escape_ascii().to_string(),
            (wanted + "END\r\n").as_bytes().escape_ascii().to_string()
        );
        assert_eq!(count(&scene, "gathers_answered"), 1, "{}", scene.diagnosis());
        let begun = count(&scene, "through_begun");
        // One of the answers has eight datagrams.
        assert_eq!((begun, count(&scene, "through_answers")), (192, begun + 7), "{}", scene.diagnosis());
        // Answers that came by the other queue.
        assert!(count(&scene, "to_threads") > 0, "{}", scene.diagnosis());
        scene.drops_become(&[]);
    }
}

#[test]
fn memcaslap_finds_all_that_it_stored_though_answers_pass_through() {
    memcaslap_finds_all(&scene(true, 1, SLOW));
}

#[test]
fn a_server_that_dies_is_left_out_and_requests_under_way_end_by_themselves() {
    let mut scene = scene(true, 1, "");
    let client = scene.client(true);
    let get = |key: usize| format!("get key{key}\r\n").into_bytes();
    drop(scene.servers[1].take());
    for key in 0..60 {
        client.send(&get(key));
    }
    scene.serving(2);
    let is_over = || {
        let [begun, answers, unanswered] =
            ["through_begun", "through_answers", "through_unanswered"].map(|name| count(&scene, name));
        (begun == answers + unanswered && unanswered > 0).then_some(())
    };
    assert!(eventually(BOUND, is_over).is_some(), "{}", scene.diagnosis());
    for key in 60..120 {
        assert_eq!(scene.client(true).ask_within(&get(key), BOUND).as_deref(), Some(&b"END\r\n"[..]));
    }
}

/// Further keys of `kv`: a slow machine is no silent server.
pub(crate) const SLOW: &str = ", answer_timeout = \"1s\"";
