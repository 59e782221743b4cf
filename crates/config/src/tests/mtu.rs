//! Tests of `[cluster.mtu]`: ranges, and warnings for encapsulated packets that exceed the MTU.

use super::{all, check, parsed, with_pools};

const KEY: &str = "hash_key_file = \"k\"";

#[test]
fn lengths_are_checked_and_arrive() {
    check(&[
        (
            KEY,
            "hash_key_file = \"k\"\nmtu = { clients = 575, core = 1279, more = 1 }",
            &[
                (4, "cluster.mtu.clients", "\"clients\" must be between 576 and 9000, got 575", ""),
                (4, "cluster.mtu.core", "\"core\" must be between 1280 and 65535, got 1279", ""),
                (4, "cluster.mtu.more", "unknown key \"more\" in [cluster.mtu]", "did you mean \"core\"?"),
            ],
        ),
        // GUE over IPv4 adds 32 bytes.
        (KEY, "hash_key_file = \"k\"\nmtu = { core = 1532 }", &[]),
        (
            KEY,
            "hash_key_file = \"k\"\nmtu = { core = 1531 }",
            &[(
                4,
                "cluster.mtu.core",
                "cluster.mtu.core is 1531, but packets to backend \"b1\" need 1532",
                "packets of 1500 bytes in encapsulation \"t\" to 198.18.0.1 exceed the MTU and are fragmented; use a larger MTU",
            )],
        ),
        (
            KEY,
            "hash_key_file = \"k\"\nmtu = { clients = 9000, core = 9000 }",
            &[(
                4,
                "cluster.mtu.core",
                "cluster.mtu.core is 9000, but packets to backend \"b1\" need 9032",
                "packets of 9000 bytes in encapsulation \"t\" to 198.18.0.1 exceed the MTU and are fragmented; use a larger MTU",
            )],
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
        found.map(|problem| problem.message).collect::<Vec<_>>()
    };
    // GRE adds 44 bytes over IPv6 and 24 bytes over IPv4.
    assert_eq!(of(1_544, ""), [""; 0]);
    assert_eq!(of(1_543, ""), ["cluster.mtu.core is 1543, but fragments to machine \"lb2\" need 1544"]);
    assert_eq!(of(1_543, "encapsulation = \"l2\"\n").len(), 1, "the pool has no outer header");
}
