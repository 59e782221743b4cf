//! Tests that read the properties of a real interface.

use std::process::Command;

use datapath::Decap;
use datapath::interface::{Features, Interface, Privileges, Severity, privilege_findings};
use datapath::steer::{Steer, SteerOptions};
use forwarder::NoSocket;

use crate::bed;

#[test]
fn interface_read_of_a_veth_matches_its_settings() {
    bed::enter();
    bed::ip("link set near mtu 1400");
    bed::run("ethtool", "-K near rxvlan off");
    let near = Interface::read("near").unwrap();
    assert_eq!((near.mac, near.mtu_bytes, near.driver.as_str()), (bed::NEAR_MAC, 1_400, "veth"));
    assert_eq!((near.is_up, near.has_carrier), (true, true));
    assert_eq!((near.master.clone(), near.xdp_program), (None, None));
    assert_eq!(near.features, Features::default());
    assert_eq!((near.queues, near.max_queues), (4, 4));
    assert_eq!(near.findings(2_048), []);

    bed::run("ethtool", "-K near rxvlan on");
    bed::run("ethtool", "-L near rx 3 tx 3");
    bed::ip("link set far down");
    let near = Interface::read("near").unwrap();
    assert_eq!(near.features, Features { rx_vlan: true, ..Features::default() });
    assert_eq!((near.queues, near.max_queues), (3, 4));
    assert_eq!((near.is_up, near.has_carrier), (true, false));
    assert_eq!(near.findings(2_048).len(), 1, "{:?}", near.findings(2_048));

    bed::ip("link set near mtu 9000");
    let findings = Interface::read("near").unwrap().findings(2_048);
    assert_eq!(findings[0].severity, Severity::Error);
    assert!(findings[0].what.contains("MTU of 9000"), "{}", findings[0]);
}

#[test]
fn interface_read_of_a_bridge_port_has_its_master() {
    bed::enter();
    bed::ip("link add name above type bridge");
    bed::ip("link set near master above");
    let near = Interface::read("near").unwrap();
    let master = near.master.clone().unwrap();
    assert_eq!((master.name.as_str(), master.kind.as_str()), ("above", "bridge"));
    assert!(!near.is_slave());
}

#[test]
fn needed_capabilities_are_enough_for_both_programs() {
    bed::enter();
    let child = Command::new("setpriv")
        .args(["--bounding-set", "-all,+net_admin,+net_raw,+bpf,+perfmon"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "facts::attaches_both", "--ignored"])
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

#[test]
#[ignore = "runs in the process that needed_capabilities_are_enough_for_both_programs starts"]
fn attaches_both() {
    let privileges = Privileges::read().unwrap();
    assert_eq!(privileges, Privileges::from_mask(1 << 12 | 1 << 13 | 1 << 38 | 1 << 39));
    assert_eq!(privilege_findings(privileges), []);
    let options = SteerOptions { max_vips: 8, no_socket: NoSocket::Pass, max_queues: 4 };
    let _steer = Steer::attach("near", &options).unwrap();
    let any = [("0.0.0.0".parse().unwrap(), 0), ("::".parse().unwrap(), 0)];
    let _decap = Decap::attach("far", &["192.0.2.1".parse().unwrap()], &any, &any).unwrap();
}
