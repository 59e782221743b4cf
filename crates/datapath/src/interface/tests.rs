//! Tests which findings result from the properties of an interface.

use super::*;

const FRAME: u32 = 2_048;

fn sound(driver: &str) -> Interface {
    Interface {
        name: "eth0".to_owned(),
        index: 7,
        mac: [2, 0, 0, 0, 0, 1],
        mtu_bytes: 1_500,
        is_up: true,
        has_carrier: true,
        driver: driver.to_owned(),
        queues: 4,
        max_queues: 4,
        features: Features::default(),
        master: None,
        xdp_program: None,
        xdp_program_name: None,
        multi_buffer: None,
    }
}

fn slave_of(kind: &str) -> Option<Master> {
    Some(Master { name: "up0".to_owned(), kind: kind.to_owned() })
}

/// Each tuple contains a driver, a change that is applied to an interface without problems, and the
/// expected findings.
type Row = (&'static str, fn(&mut Interface), &'static [(Severity, &'static str, &'static str)]);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("ixgbe", |_| (), &[]),
    ("ixgbe", |i| i.master = slave_of("bond"), &[(Severity::Error, "member of the bond up0", "ip link set dev eth0 nomaster")]),
    ("ixgbe", |i| i.master = slave_of("team"), &[(Severity::Error, "member of the team up0", "use up0 as the interface")]),
    ("ixgbe", |i| i.master = slave_of("bridge"), &[]),
    ("ixgbe", |i| i.xdp_program = Some(42), &[(Severity::Error, "XDP program, id 42", "ip link set dev eth0 xdp off")]),
    ("ixgbe", |i| { i.xdp_program = Some(42); i.xdp_program_name = Some("other".into()); }, &[(Severity::Error, "id 42, called \"other\"", "ip link set dev eth0 xdp off")]),
    ("ixgbe", |i| { i.xdp_program = Some(42); i.xdp_program_name = Some("steer".into()); }, &[(Severity::Error, "attached by a running `sluicegate run`", "stop that process first")]),
    ("ixgbe", |i| { i.xdp_program = Some(42); i.xdp_program_name = Some("decap".into()); }, &[(Severity::Error, "attached by a running `sluicegate decap`", "stop that process first")]),
    ("ixgbe", |i| i.mtu_bytes = 1_707, &[]),
    ("ixgbe", |i| i.mtu_bytes = 1_708, &[(Severity::Error, "MTU of 1708 bytes, and io.frame_size = 2048 holds packets of up to 1707", "ip link set dev eth0 mtu 1707, or set io.frame_size = 4096, which holds packets of up to 3755")]),
    ("ixgbe", |i| i.mtu_bytes = 3_755, &[(Severity::Error, "MTU of 3755 bytes", ", or set io.frame_size = 4096, which holds")]),
    ("ixgbe", |i| i.mtu_bytes = 3_756, &[(Severity::Error, "MTU of 3756 bytes", "and the MTU to at most 3755, because the driver does not report")]),
    ("ixgbe", |i| { i.mtu_bytes = 3_755; i.multi_buffer = Some(true); }, &[(Severity::Advice, "MTU of 3755 bytes", "set io.frame_size = 4096, which holds packets of up to 3755")]),
    ("ixgbe", |i| { i.mtu_bytes = 9_000; i.multi_buffer = Some(true); }, &[]),
    ("ixgbe", |i| { i.mtu_bytes = 9_000; i.multi_buffer = Some(false); }, &[(Severity::Error, "MTU of 9000 bytes", "the driver does not report XDP multi-buffer")]),
    ("ixgbe", |i| { i.mtu_bytes = 20_000; i.multi_buffer = Some(true); }, &[(Severity::Error, "MTU of 20000 bytes", "ip link set dev eth0 mtu 15779, or packets in several frames")]),
    ("igb", |i| i.mtu_bytes = 3_050, &[]),
    ("igb", |i| i.mtu_bytes = 3_051, &[(Severity::Error, "MTU of 3051 bytes, and its driver igb stores packets of up to 3050 bytes in a frame of 4096 bytes", "ip link set dev eth0 mtu 3050")]),
    ("igc", |i| { i.mtu_bytes = 9_000; i.multi_buffer = Some(true); }, &[(Severity::Error, "MTU of 9000 bytes, and its driver igc", "ip link set dev eth0 mtu 3050")]),
    ("ixgbe", |i| i.features.lro = true, &[(Severity::Error, "LRO on", "ethtool -K eth0 lro off")]),
    ("ixgbe", |i| i.features.gro_hw = true, &[(Severity::Error, "GRO-HW on", "ethtool -K eth0 rx-gro-hw off")]),
    ("veth", |i| i.features.gro_list = true, &[(Severity::Warn, "rx-gro-list on", "ethtool -K eth0 rx-gro-list off")]),
    ("virtio_net", |i| i.features.gro_hw = true, &[]),
    ("virtio_net", |i| i.queues = 3, &[(Severity::Error, "3 of 4 channels enabled", "ethtool -L eth0 combined 4")]),
    ("ixgbe", |i| i.queues = 3, &[]),
    ("ixgbe", |i| i.features.rx_vlan = true, &[(Severity::Warn, "rxvlan on", "ethtool -K eth0 rxvlan off")]),
    ("veth", |i| i.features.rx_vlan = true, &[]),
    ("ixgbe", |i| i.is_up = false, &[(Severity::Warn, "is down", "ip link set dev eth0 up")]),
    ("ixgbe", |i| i.has_carrier = false, &[(Severity::Warn, "no carrier", "cable")]),
    ("ixgbe", |i| { i.is_up = false; i.has_carrier = false; i.features = Features { lro: true, gro_hw: true, gro: true, gro_list: true, rx_vlan: true, tx_checksum: true }; }, &[
        (Severity::Error, "LRO on", "lro off"),
        (Severity::Error, "GRO-HW on", "rx-gro-hw off"),
        (Severity::Warn, "rx-gro-list on", "rx-gro-list off"),
        (Severity::Warn, "rxvlan on", "rxvlan off"),
        (Severity::Warn, "is down", "up"),
    ]),
];

#[test]
fn findings_name_each_fault_and_its_fix() {
    for (row, (driver, change, expected)) in ROWS.iter().enumerate() {
        let mut interface = sound(driver);
        change(&mut interface);
        let findings = interface.findings(FRAME);
        assert_eq!(findings.len(), expected.len(), "row {row}: {findings:?}");
        for (finding, (severity, what, fix)) in findings.iter().zip(*expected) {
            assert_eq!(finding.severity, *severity, "row {row}: {finding}");
            assert!(finding.what.contains(what), "row {row}: {finding}");
            assert!(finding.fix().contains(fix), "row {row}: {finding}");
            assert!(finding.what.starts_with("eth0 "), "row {row}: {finding}");
        }
    }
}

#[test]
fn packet_findings_report_merging_offloads_only() {
    /// Each tuple contains a change to the interface, and the commands of the expected findings.
    type Change = (fn(&mut Interface), &'static [&'static str]);
    let rows: [Change; 8] = [
        (|_| {}, &[]),
        (|i| i.master = Some(Master { name: "bond0".into(), kind: "bond".into() }), &[]),
        (|i| i.xdp_program = Some(42), &[]),
        (|i| i.mtu_bytes = LONGEST_PACKET, &[]),
        (|i| i.mtu_bytes = LONGEST_PACKET + 1, &["ip link set dev eth0 mtu 15779"]),
        (|i| i.queues = 1, &[]),
        (
            |i| {
                let merging = Features { lro: true, gro_hw: true, gro: true, gro_list: true, ..i.features };
                i.features = Features { rx_vlan: true, ..merging };
            },
            &["ethtool -K eth0 lro off", "ethtool -K eth0 rx-gro-hw off", "ethtool -K eth0 gro off"],
        ),
        (|i| i.is_up = false, &["ip link set dev eth0 up"]),
    ];
    for (row, (change, commands)) in rows.iter().enumerate() {
        let mut interface = sound("virtio_net");
        change(&mut interface);
        let found = interface.packet_findings();
        let said: Vec<_> = found.iter().map(|finding| finding.command.as_deref().unwrap()).collect();
        assert_eq!(said, *commands, "row {row}");
    }
}

#[test]
fn drivers_with_coarse_buffer_sizes_get_larger_frames() {
    let size = |driver, mtu_bytes, configured| {
        frame_size(&[sound("ixgbe"), Interface { mtu_bytes, ..sound(driver) }], configured)
    };
    assert_eq!((size("ixgbe", 1_500, 2_048), size("igb", 1_500, 2_048)), (2_048, 4_096));
    // A packet of 1,002 bytes with a link header and two VLAN tags has 1,024 bytes.
    assert_eq!((size("igc", 1_002, 2_048), size("igc", 1_003, 2_048)), (2_048, 4_096));
    assert_eq!((size("igb", 1_500, 4_096), frame_size(&[], 2_048)), (4_096, 2_048));
}

#[test]
fn findings_accept_an_mtu_that_frames_can_hold() {
    assert_eq!((largest_packet(2_048), largest_packet(4_096)), (1_707, 3_755));
    assert_eq!(LONGEST_PACKET, 15_779);
    let with = |mtu_bytes| Interface { mtu_bytes, ..sound("ixgbe") }.findings(4_096);
    assert_eq!(with(3_755), []);
    let said: Vec<String> = with(9_000).iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "eth0 has an MTU of 9000 bytes, and io.frame_size = 4096 holds packets of up to 3755 (longer packets do not fit, and \
          most drivers refuse XDP with such an MTU); fix: ip link set dev eth0 mtu 3755, or set io.frame_size = 4096 and the MTU \
          to at most 3755, because the driver does not report XDP multi-buffer"
        ]
    );
}

#[test]
fn interface_read_refuses_invalid_names() {
    for name in ["", ".", "..", "a/b", "a b", "a\0b", "a:1", "a\n", "sixteen_bytes_xx"] {
        assert!(matches!(Interface::read(name), Err(InterfaceError::Name(_))), "{name:?}");
    }
}

#[test]
fn interface_read_reports_a_missing_interface() {
    let error = Interface::read("no-such-link").unwrap_err();
    assert_eq!(error.to_string(), "there is no interface `no-such-link` in this network namespace");
}

#[test]
fn interface_read_works_for_loopback_without_privileges() {
    let lo = Interface::read("lo").unwrap();
    assert_eq!((lo.name.as_str(), lo.index, lo.mac), ("lo", 1, [0; 6]));
    assert_eq!((lo.queues, lo.max_queues, lo.master), (1, 1, None));
}
