//! Measures the time that the steering program needs for each packet, using BPF_PROG_TEST_RUN. The
//! test asserts only the verdicts, not the cost.
//!
//! Run it with `cargo test --release -p sluicegate-datapath --test bpf cost -- --ignored
//! --nocapture`.

use std::net::IpAddr;

use datapath::steer::{Filter, Steer};
use forwarder::Prefix;

use crate::bed;
use crate::frames::{frame, ip, udp};
use crate::run::{PASS, Program, REDIRECT};
use crate::steer::{OPTIONS, Receiver, to};

#[test]
#[ignore = "measurement; see the header of this file"]
fn prefixes_against_one_exact_vip() {
    bed::enter();
    let mut steer = Steer::attach("near", &OPTIONS).unwrap();
    let receiver = Receiver::on(0);
    steer.set_socket(0, receiver.rx.fd()).unwrap();
    let program = Program::on_near();
    let prefix = |n: u8| -> Prefix {
        let (address, length): (IpAddr, u8) = match n % 2 {
            0 => ([198, 18, n, 0].into(), 24 + n % 5),
            _ => (format!("2001:db8:{n:x}::").parse().unwrap(), 48 + n % 17),
        };
        Prefix::new(address, length).unwrap()
    };
    let exact = Filter::of_vips([ip("203.0.113.10"), ip("2001:db8:f::10")]);
    let with =
        |count: u8| Filter::new([ip("203.0.113.10"), ip("2001:db8:f::10")], (0..count).map(prefix), []);
    let rows = [
        ("exact v4, no prefixes", &exact, "203.0.113.10", REDIRECT),
        ("exact v4, 64 prefixes", &with(64), "203.0.113.10", REDIRECT),
        ("exact v6, 64 prefixes", &with(64), "2001:db8:f::10", REDIRECT),
        ("the only prefix, v4", &with(1), "198.18.0.9", REDIRECT),
        ("one of 8 prefixes, v4", &with(8), "198.18.4.9", REDIRECT),
        ("one of 64 prefixes, v4", &with(64), "198.18.36.9", REDIRECT),
        ("one of 64 prefixes, v6", &with(64), "2001:db8:21::9", REDIRECT),
        ("no VIP, no prefixes", &exact, "198.51.100.9", PASS),
        ("no VIP, 64 prefixes", &with(64), "198.51.100.9", PASS),
    ];
    for (name, filter, address, verdict) in rows {
        steer.set_filter(filter).unwrap();
        let frame = frame(0, &to(address, 17, &udp(80, b"x")));
        let costs: Vec<u32> = (0..9)
            .map(|_| {
                let (got, cost) = program.cost(&frame, 0, 1_000_000);
                assert_eq!(got, verdict, "{name}");
                cost
            })
            .collect();
        println!("{name:24} least {:3} ns of {costs:?}", costs.iter().min().unwrap());
    }
}
