//! Tests of `path = "proxied"`, with which requests and replies go through the balancer. The
//! servers do not have the VIPs and are behind a router.

use std::net::{IpAddr, SocketAddr};

use testbed::{
    Bed, BedSpec, Encapsulation, Host, LbConfig, PoolMember, Process, QueryClient, VIP_V4, VIP_V6,
    eventually, start_memcached_at,
};

use crate::clients::memcaslap_finds_all;
use crate::scene::{BOUND, PATIENT, PORT, SILENCE, Scene, config};

/// Starts a server that listens on its own addresses but not on the VIPs.
fn at_own_address(_: &Bed, host: &Host) -> Option<Process> {
    let server = start_memcached_at(host, [host.v6.into(), host.v4.into()], &[]).unwrap();
    let at_vip = QueryClient::new(&host.ns, SocketAddr::new(VIP_V4, PORT));
    assert_eq!(at_vip.ask_within(b"version\r\n", SILENCE), None);
    Some(server)
}

/// Returns a configuration with one VIP. The backend addresses have the same family as the VIP.
pub(crate) fn proxied(bed: &Bed, ipv4: bool, kv: &str) -> LbConfig {
    let mut config = config(bed, &format!(", path = \"proxied\"{kv}{PATIENT}"));
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
    Scene::with(&spec, |bed| proxied(bed, ipv4, kv), at_own_address)
}

fn count(scene: &Scene, name: &str) -> u64 {
    scene.balancer.counters().unwrap().over_threads(&[name])
}

// Promise: proxied-answers
#[test]
fn proxied_clients_read_back_all_values() {
    for ipv4 in [true, false] {
        let scene = scene(ipv4, 2, SLOW);
        let value = |key: usize| format!("value of {key} {}", "v".repeat(key * 14));
        for key in 0..90 {
            let value = value(key);
            let set = format!("set key{key} {key} 0 {}\r\n{value}\r\n", value.len());
            assert_eq!(scene.ask(&scene.client(ipv4), set.as_bytes()), b"STORED\r\n");
        }
        // The value of the key `long` needs several datagrams.
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
        // Each server must have some of the keys. A request for keys on several servers gets one
        // reply.
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
        let begun = count(&scene, "proxied_begun");
        // One of the responses has eight datagrams, and all others have one.
        assert_eq!((begun, count(&scene, "proxied_answers")), (192, begun + 7), "{}", scene.diagnosis());
        // Some server responses must have arrived at a packet thread that did not handle the
        // request.
        assert!(count(&scene, "to_threads") > 0, "{}", scene.diagnosis());
        scene.drops_become(&[]);
    }
}

#[test]
fn proxied_memcaslap_reads_back_all_values() {
    memcaslap_finds_all(&scene(true, 1, SLOW));
}

#[test]
fn proxied_server_failure_ends_pending_requests() {
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
            ["proxied_begun", "proxied_answers", "proxied_unanswered"].map(|name| count(&scene, name));
        (begun == answers + unanswered && unanswered > 0).then_some(())
    };
    assert!(eventually(BOUND, is_over).is_some(), "{}", scene.diagnosis());
    for key in 60..120 {
        assert_eq!(scene.client(true).ask_within(&get(key), BOUND).as_deref(), Some(&b"END\r\n"[..]));
    }
}

/// A setting for the `kv` table of a pool: a timeout that is long enough for slow machines.
pub(crate) const SLOW: &str = ", answer_timeout = \"1s\"";
