//! Tests with the Rust crate `memcache`, which uses the binary protocol over UDP. The connection
//! pool of this crate requests the server's version before each use of a connection.

use std::sync::mpsc::channel;

use memcache::Client;
use testbed::eventually;

use crate::scene::{BOUND, Scene, config};

const SMALL: usize = 200;
const LARGE: usize = 20;

fn value(key: usize) -> String {
    format!("value of {key}")
}

/// Returns a value of 20,000 bytes, which needs 15 fragments in a request and 15 datagrams in a
/// response.
fn large(key: usize) -> Vec<u8> {
    (0..20_000).map(|at| u8::try_from((at * 7 + key) % 251).unwrap()).collect()
}

/// Runs all operations of the crate on the client host.
fn talk(url: &str) -> Result<(), memcache::MemcacheError> {
    let client = Client::builder()
        .add_server(url)?
        .with_max_pool_size(1)
        .with_connection_timeout(BOUND)
        .with_read_timeout(BOUND)
        .build()?;
    for (_, version) in client.version()? {
        assert!(version.starts_with("1."), "{version}");
    }
    for key in 0..SMALL {
        client.set(&format!("small{key}"), value(key), 0)?;
    }
    for key in 0..LARGE {
        client.set(&format!("large{key}"), &large(key)[..], 0)?;
    }
    for key in 0..SMALL {
        assert_eq!(client.get::<String>(&format!("small{key}"))?, Some(value(key)));
    }
    for key in 0..LARGE {
        assert_eq!(client.get::<Vec<u8>>(&format!("large{key}"))?, Some(large(key)));
    }
    assert_eq!(client.get::<String>("nothing")?, None);
    client.set("number", 40, 0)?;
    assert_eq!(client.increment("number", 5)?, 45);
    assert_eq!(client.decrement("number", 3)?, 42);
    assert!(client.touch("number", 1_000)?);
    client.append("small0", "!")?;
    assert_eq!(client.get::<String>("small0")?, Some(value(0) + "!"));
    assert!(client.delete("small1")? && !client.delete("small1")?);
    assert_eq!(client.get::<String>("small1")?, None);
    Ok(())
}

#[test]
fn memcache_crate_reads_back_20_kb_over_udp() {
    for hash in ["maglev", "ketama"] {
        let scene = Scene::new(|bed| config(bed, &format!(", hash = \"{hash}\"")));
        let url = format!("memcache+udp://{}?protocol=binary", scene.bed.vip(true, crate::scene::PORT));
        // Without a response to VERSION, the crate and the thread would wait forever.
        let (tell, done) = channel();
        drop(scene.bed.client.ns.spawn(move || drop(tell.send(talk(&url)))));
        let done = done.recv_timeout(BOUND).unwrap_or_else(|_| panic!("{hash}\n{}", scene.diagnosis()));
        assert!(done.is_ok(), "{hash}: {done:?}\n{}", scene.diagnosis());
        scene.drops_become(&[]);
        let count = |name| scene.balancer.counters().unwrap().over_threads(&[name]);
        // The crate sends an additional version request before each request.
        let requests = u64::try_from(SMALL + LARGE).unwrap();
        assert!(eventually(BOUND, || (count("keyed_others") > 2 * requests).then_some(())).is_some());
        assert!(
            count("keyed_reads") > requests && count("keyed_writes") >= requests,
            "{}",
            scene.diagnosis()
        );
        let stored = (0..3).filter(|backend| {
            (0..LARGE).any(|key| {
                let answer =
                    scene.beside(*backend).ask_within(format!("mg large{key} s\r\n").as_bytes(), BOUND);
                answer.unwrap().starts_with(b"HD s20000")
            })
        });
        assert_eq!(stored.count(), 3, "each server has some");
    }
}
