//! A test of the whole path: client, router, balancer with AF_XDP, `decap` on the backend, and the
//! direct reply.

use std::collections::BTreeSet;
use std::time::Duration;

use testbed::{Balancer, Bed, BedSpec, Decap, LbConfig, eventually, udp_ask};

const BOUND: Duration = Duration::from_secs(20);

#[test]
fn requests_reach_backends_with_client_address() {
    let bed = Bed::new(&BedSpec::default()).unwrap();
    let decaps = Decap::start_all(&bed).unwrap();
    let balancer = Balancer::start(&bed, 0, &LbConfig::new(&bed)).unwrap();
    for ipv4 in [true, false] {
        let vip = bed.vip(ipv4, Bed::HTTP_PORT);
        let replies = bed.http_client().get_many(vip, "/", 60, 8);
        let failed: Vec<_> = replies.iter().filter_map(|reply| reply.as_ref().err()).collect();
        assert!(failed.is_empty() && replies.len() == 60, "{failed:?}\n{}", balancer.process.tail());
        for reply in replies.iter().flatten() {
            assert_eq!((reply.status, reply.peer, reply.server_seen), (200, vip, Some(vip)));
            assert_eq!(reply.client_seen, Some(reply.local));
        }
        let answered: BTreeSet<&str> = replies.iter().flatten().map(|reply| reply.backend.as_str()).collect();
        // The probability that at least one of the three backends gets none of the 60 flows is
        // below 3 x (2/3)^60 = 8e-11.
        assert_eq!(answered, BTreeSet::from(["b1", "b2", "b3"]));
        let echo = bed.vip(ipv4, Bed::ECHO_PORT);
        let reply = udp_ask(&bed.client.ns, echo, b"over the whole path", BOUND).unwrap();
        assert_eq!((reply.from, reply.client_seen), (echo, Some(reply.local)));
    }
    // The packet thread counts some packets only in the iteration after it has sent them.
    let counts = eventually(BOUND, || {
        let counts = balancer.counters().unwrap();
        (counts.redirected() == counts.received() && counts.received() == counts.sent()).then_some(counts)
    });
    counts.expect("the counters do not match");
    // Closing connections may have sent more packets after the counters were read.
    let sent = balancer.stop().unwrap().expect("the log has no final line with totals").forwarded;
    let taken_off: u64 = decaps.into_iter().map(|decap| Decap::taken_off(&decap.stop().unwrap())).sum();
    assert_eq!(taken_off, sent);
    let client = bed.http_client().connect_timeout(Duration::from_millis(300));
    for ipv4 in [true, false] {
        assert_eq!(client.get_many(bed.vip(ipv4, 80), "/", 8, 8).iter().flatten().count(), 0);
    }
}
