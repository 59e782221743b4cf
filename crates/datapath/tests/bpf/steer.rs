//! Tests of the steering program: verdicts, counters, map lookups, and the state of the interface
//! after the program is detached.

use std::io::{BufRead, BufReader};
use std::num::NonZeroU32;
use std::process::{Command, Stdio};

use datapath::interface::Interface;
use datapath::steer::{
    Changed, Filter, Steer, SteerCounts, SteerError, SteerOptions, TunnelEndpoints, takes,
};
use datapath::{AttachError, AttachMode};
use forwarder::NoSocket;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use xsk_rs::config::{BindFlags, LibxdpFlags, SocketConfig, UmemConfig};
use xsk_rs::{FillQueue, FrameDesc, RxQueue, Socket, TxQueue, Umem};

use crate::bed::{self, Wire};
use crate::frames::{frame, ip, packet, udp};
use crate::run::{DROP, PASS, Program, REDIRECT};

const VIP4: &str = "203.0.113.10";
const VIP6: &str = "2001:db8:f::10";
pub(crate) const OPTIONS: SteerOptions =
    SteerOptions { max_vips: 8, no_socket: NoSocket::Pass, max_queues: 4 };

fn vips() -> Filter {
    Filter::of_vips([ip(VIP4), ip(VIP6)])
}

fn attach(options: &SteerOptions) -> Steer {
    let mut steer = Steer::attach("near", options).unwrap();
    let added = steer.set_filter(&vips()).unwrap();
    assert_eq!(added, Changed { added: 2, ..Changed::default() });
    steer
}

/// An AF_XDP socket on a queue of `near`. Its fill ring has 32 frames.
pub(crate) struct Receiver {
    umem: Umem,
    pub(crate) rx: RxQueue,
    _tx: TxQueue,
    _fill: FillQueue,
}

impl Receiver {
    pub(crate) fn on(queue: u32) -> Self {
        let umem_config = UmemConfig::builder().build().unwrap();
        let (umem, frames) = Umem::new(umem_config, NonZeroU32::new(32).unwrap(), false).unwrap();
        let config = SocketConfig::builder()
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(BindFlags::XDP_COPY | BindFlags::XDP_USE_NEED_WAKEUP)
            .build();
        // SAFETY: this is the only socket of the UMEM, so the fill and completion rings are not
        // used by another socket.
        let (tx, rx, rings) = unsafe { Socket::new(config, &umem, &"near".parse().unwrap(), queue) }.unwrap();
        let (mut fill, _) = rings.unwrap();
        // SAFETY: the frames belong to this UMEM, and no other code uses them.
        assert_eq!(unsafe { fill.produce(&frames) }, 32);
        Self { umem, rx, _tx: tx, _fill: fill }
    }

    fn on_each_queue(steer: &mut Steer) -> Vec<Self> {
        let receivers: Vec<Self> = (0..4).map(Self::on).collect();
        for (queue, receiver) in (0..).zip(&receivers) {
            steer.set_socket(queue, receiver.rx.fd()).unwrap();
        }
        receivers
    }

    /// Returns the next frame, if one arrives within 50 ms.
    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut frames = [FrameDesc::default()];
        // SAFETY: the returned descriptors belong to the UMEM of this socket.
        let count = unsafe { self.rx.poll_and_consume(&mut frames, 50) }.unwrap();
        // SAFETY: the kernel has passed this frame to the socket. The frame is not put into the
        // fill ring again.
        (count > 0).then(|| unsafe { self.umem.data(&frames[0]) }.contents().to_vec())
    }
}

/// Waits until a frame arrives on any of the sockets. Returns all received frames.
fn received(receivers: &mut [Receiver]) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    bed::eventually("a frame arrives on a socket", || {
        got.extend(receivers.iter_mut().filter_map(Receiver::receive));
        !got.is_empty()
    });
    got
}

pub(crate) fn to(vip: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let from = if ip(vip).is_ipv4() { "198.18.0.1" } else { "2001:db8:c::1" };
    packet(ip(from), ip(vip), protocol, payload)
}

#[test]
fn steer_gives_each_frame_a_verdict_and_one_count() {
    bed::enter();
    let mut steer = attach(&OPTIONS);
    let receiver = Receiver::on(1);
    steer.set_socket(1, receiver.rx.fd()).unwrap();
    let program = Program::on_near();
    let (v4, v6) = (to(VIP4, 17, &udp(80, b"x")), to(VIP6, 17, &udp(80, b"x")));
    let mut group = frame(0, &v4);
    group[0] |= 1;
    let mut arp = frame(0, &v4);
    arp[13] = 6;
    let mut wrong_version = frame(0, &v4);
    wrong_version[14] = 0x65;
    let mut wrong_version6 = frame(0, &v6);
    wrong_version6[14] = 0x40;
    // Bytes 6 and 40 of this IPv4 packet have the values that identify IPv6 neighbor discovery.
    let mut like_discovery = frame(0, &to(VIP4, 17, &[135; 30]));
    like_discovery[14 + 6] = 58;
    let counts = |change: fn(&mut SteerCounts)| {
        let mut counts = SteerCounts::default();
        change(&mut counts);
        counts
    };
    let redirected = counts(|c| c.redirected = 1);
    let passed = counts(|c| c.passed = 1);
    let discovery = counts(|c| c.neighbour_discovery = 1);
    let mut rows = vec![
        (frame(0, &v4), REDIRECT, redirected),
        (frame(1, &v4), REDIRECT, redirected),
        (frame(2, &v4), REDIRECT, redirected),
        (frame(3, &v4), PASS, passed),
        (frame(0, &v6), REDIRECT, redirected),
        (frame(1, &v6), REDIRECT, redirected),
        (frame(2, &v6), REDIRECT, redirected),
        (group, PASS, counts(|c| c.multicast = 1)),
        (arp, PASS, passed),
        (wrong_version, PASS, passed),
        (wrong_version6, PASS, passed),
        (frame(0, &to("203.0.113.11", 17, b"")), PASS, passed),
        (frame(0, &to("2001:db8:f::11", 17, b"")), PASS, passed),
        (frame(0, &to("::ffff:203.0.113.10", 17, b"")), PASS, passed),
        (frame(0, &to(VIP6, 58, &[132, 0])), REDIRECT, redirected),
        (frame(0, &to(VIP6, 58, &[138, 0])), REDIRECT, redirected),
        (frame(0, &to(VIP6, 58, &[])), REDIRECT, redirected),
        (frame(0, &to(VIP6, 6, &[135, 0])), REDIRECT, redirected),
        (frame(0, &to(VIP4, 58, &[135, 0])), REDIRECT, redirected),
        (like_discovery, REDIRECT, redirected),
        (frame(0, &to(VIP4, 1, &[8, 0])), REDIRECT, redirected),
    ];
    rows.extend((133..=137).map(|kind| (frame(1, &to(VIP6, 58, &[kind, 0])), PASS, discovery)));
    for (row, (frame, verdict, moved)) in rows.iter().enumerate() {
        let before = steer.counts().unwrap();
        let (got, out) = program.run(frame, 1);
        assert_eq!((got, &out), (*verdict, frame), "row {row}");
        assert_eq!(difference(&steer.counts().unwrap(), &before), *moved, "row {row}");
        let without_a_kernel = takes(frame, &vips(), &TunnelEndpoints::default());
        assert_eq!(without_a_kernel, got == REDIRECT, "row {row}");
    }
}

pub(crate) fn difference(after: &SteerCounts, before: &SteerCounts) -> SteerCounts {
    SteerCounts {
        redirected: after.redirected - before.redirected,
        passed: after.passed - before.passed,
        multicast: after.multicast - before.multicast,
        neighbour_discovery: after.neighbour_discovery - before.neighbour_discovery,
        no_socket: after.no_socket - before.no_socket,
    }
}

#[test]
fn steer_redirects_only_frames_with_a_complete_header() {
    bed::enter();
    let mut steer = attach(&OPTIONS);
    let receiver = Receiver::on(0);
    steer.set_socket(0, receiver.rx.fd()).unwrap();
    let program = Program::on_near();
    for (packet, header) in [(to(VIP4, 17, &udp(80, b"x")), 20), (to(VIP6, 17, &udp(80, b"x")), 40)] {
        for tags in 0..=2 {
            let frame = frame(tags, &packet);
            for length in 14..=frame.len() {
                let expected = if length >= 14 + 4 * tags + header { REDIRECT } else { PASS };
                assert_eq!(program.run(&frame[..length], 0).0, expected, "{length} bytes, {tags} tags");
                let without_a_kernel = takes(&frame[..length], &vips(), &TunnelEndpoints::default());
                assert_eq!(without_a_kernel, expected == REDIRECT, "{length} bytes, {tags} tags");
            }
        }
    }
}

#[test]
fn steer_without_a_socket_passes_or_drops_the_whole_frame() {
    for (no_socket, verdict) in [(NoSocket::Pass, PASS), (NoSocket::Drop, DROP)] {
        bed::enter();
        let mut steer = attach(&SteerOptions { no_socket, max_queues: 2, ..OPTIONS });
        let receiver = Receiver::on(0);
        steer.set_socket(0, receiver.rx.fd()).unwrap();
        let program = Program::on_near();
        let frame = frame(0, &to(VIP4, 17, &udp(80, b"x")));
        for queue in [1, 2, 3] {
            assert_eq!(program.run(&frame, queue), (verdict, frame.clone()), "queue {queue}");
        }
        assert_eq!(program.run(&frame, 0).0, REDIRECT);
        steer.clear_socket(0).unwrap();
        steer.clear_socket(0).unwrap();
        assert_eq!(program.run(&frame, 0), (verdict, frame.clone()));
        let counts = SteerCounts { redirected: 1, no_socket: 4, ..SteerCounts::default() };
        assert_eq!(steer.counts().unwrap(), counts);
        assert!(matches!(
            steer.set_socket(2, receiver.rx.fd()),
            Err(SteerError::Attach(AttachError::Map { map: "xsks", .. }))
        ));
        assert!(matches!(
            steer.clear_socket(2),
            Err(SteerError::Attach(AttachError::Map { map: "xsks", .. }))
        ));
    }
}

#[test]
fn steer_passes_vip_packets_until_the_queue_has_a_socket() {
    bed::enter();
    let mut steer = attach(&OPTIONS);
    assert_eq!(steer.mode(), AttachMode::Driver);
    let (near, far) = (Wire::on("near"), Wire::on("far"));
    let vip = frame(0, &to(VIP4, 17, &udp(80, b"to the VIP")));
    let other = frame(0, &to("203.0.113.11", 17, &udp(80, b"to another")));
    for frame in [&vip, &other] {
        far.send(frame);
        assert_eq!(near.receive().as_ref(), Some(frame));
    }
    let mut receivers = Receiver::on_each_queue(&mut steer);
    far.send(&vip);
    far.send(&other);
    assert_eq!(near.receive().as_ref(), Some(&other));
    bed::eventually("one redirected frame", || steer.counts().unwrap().redirected == 1);
    let got = received(&mut receivers);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0], vip);
    let counts = SteerCounts { redirected: 1, passed: 2, no_socket: 1, ..SteerCounts::default() };
    assert_eq!(steer.counts().unwrap(), counts);
    for _ in 0..2 {
        steer.restart_counts().unwrap();
        assert_eq!(steer.counts().unwrap(), SteerCounts::default());
        far.send(&vip);
        bed::eventually("one redirected frame", || steer.counts().unwrap().redirected == 1);
    }
}

#[test]
fn steer_falls_back_to_generic_mode() {
    bed::enter();
    // With this MTU of the peer, veth does not support XDP in the driver.
    bed::ip("link set far mtu 9000");
    let mut steer = attach(&OPTIONS);
    assert_eq!(steer.mode(), AttachMode::Generic);
    let mut receivers = Receiver::on_each_queue(&mut steer);
    let vip = frame(0, &to(VIP4, 17, &udp(80, b"to the VIP")));
    Wire::on("far").send(&vip);
    let got = received(&mut receivers);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0], vip);
}

#[test]
fn steer_refuses_a_second_program_until_the_first_is_dropped() {
    bed::enter();
    let steer = attach(&OPTIONS);
    let id = Interface::read("near").unwrap().xdp_program.unwrap();
    match Steer::attach("near", &OPTIONS) {
        Err(SteerError::Attach(AttachError::Occupied { interface, program })) => {
            assert_eq!((interface.as_str(), program), ("near", id));
        }
        other => panic!("{other:?}"),
    }
    drop(steer);
    bed::eventually("no program on near", || Interface::read("near").unwrap().xdp_program.is_none());
    drop(attach(&OPTIONS));
}

/// Checks that the program needs CAP_PERFMON, which is the case on Linux 6.18 and 6.1.
#[test]
fn steer_without_cap_perfmon_is_refused_with_a_short_error() {
    bed::enter();
    // changes only the capabilities of this thread
    let without = CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN;
    let mut sets = capabilities(None).unwrap();
    sets.effective -= without;
    set_capabilities(None, sets).unwrap();
    let refused = Steer::attach("near", &OPTIONS).unwrap_err();
    let said = std::iter::successors(Some(&refused as &dyn std::error::Error), |error| error.source());
    let said: String = said.map(|error| format!("{error}: ")).collect();
    assert!(said.contains("the kernel refused the XDP program"), "{said:.4000}");
    assert!(said.contains("processed ") && said.len() < 4_000, "{} bytes: {said:.4000}", said.len());
}

// Promise: xdp-cleanup
#[test]
fn a_killed_process_leaves_no_program_behind() {
    bed::enter();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "steer::attaches_and_waits", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with(ATTACHED)), "the child did not attach");
    assert!(Interface::read("near").unwrap().xdp_program.is_some());
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    bed::eventually("no program on near", || Interface::read("near").unwrap().xdp_program.is_none());
}

#[test]
#[ignore = "runs in the process that a_killed_process_leaves_no_program_behind kills"]
fn attaches_and_waits() {
    let _steer = attach(&OPTIONS);
    println!("{ATTACHED}");
    std::thread::sleep(std::time::Duration::from_secs(30));
}

const ATTACHED: &str = "attached";
