//! `[cluster.mtu]`: ranges, and the warning of what does not fit.

use super::{all, check, parsed, with_pools};

const KEY: &str = "hash_key_file = \"k\"";

#[test]
fn lengths_are_checked_and_arrive() {
    check(&[
        (
            KEY,
            "hash_key_file = \"k\"\nmtu = { clients = 575, core = 1279, more = 1 }",
            &[
                (4, "cluster.mtu.clients", "575", "576 to 9000"),
                (4, "cluster.mtu.core", "1279", "1280 to 65535"),
                (4, "cluster.mtu.more", "", "clients, core"),
            ],
        ),
        // GUE over IPv4 is 32 bytes.
        (KEY, "hash_key_file = \"k\"\nmtu = { core = 1532 }", &[]),
        (
            KEY,
            "hash_key_file = \"k\"\nmtu = { core = 1531 }",
            &[(
                4,
                "cluster.mtu.core",
                "1531, but backend \"b1\" needs 1532: 1500 of a client and t over",
                "carry that much",
            )],
        ),
        (
            KEY,
            "hash_key_file = \"k\"\nmtu = { clients = 9000, core = 9000 }",
            &[(4, "cluster.mtu.core", "9000, but backend \"b1\" needs 9032", "clients get Packet Too Big")],
        ),
    ]);
    let (config, _) =
        parsed(&super::BASE.replace(KEY, "hash_key_file = \"k\"\nmtu = { clients = 1400 }")).unwrap();
    assert_eq!((config.cluster().mtu.clients, config.cluster().mtu.core), (1_400, None));
}

#[test]
fn fragments_to_another_machine_must_fit_as_well() {
    let of = |core: u32, encapsulation: &str| {
        let text = with_pools(&format!(
            "shard = \"a\"\n[machine.lb2]\nshard = \"a\"\naddresses = [\"2001:db8::2\", \"192.0.2.2\"]\ninterfaces = [\"eth0\"]\n\
             [pool.p]\n{encapsulation}backends = [{{ name = \"b1\", address = \"198.18.0.1\" }}]\n\
             [vip.v]\naddresses = [\"203.0.113.1\"]\n\
             services = [{{ ports = [80], protocol = \"tcp\", pool = \"p\" }}]\n"
        ));
        let text = text.replace(KEY, &format!("{KEY}\nmtu = {{ core = {core} }}"));
        let found = all(&text).into_iter().filter(|problem| problem.field.as_str() == "cluster.mtu.core");
        found.map(|problem| problem.found.to_owned()).collect::<Vec<_>>()
    };
    // GRE over IPv6 is 44 bytes, and over IPv4 24.
    assert_eq!(of(1_544, ""), [""; 0]);
    assert_eq!(
        of(1_543, ""),
        ["1543, but fragments to machine \"lb2\" need 1544: 1500 of a client and gre over 2001:db8::2"]
    );
    assert_eq!(of(1_543, "encapsulation = \"l2\"\n").len(), 1, "the pool has no outer header");
}
