//! Creates a network namespace with one veth pair for the calling test thread. The program under
//! test is attached to `near`, and the test sends frames from `far`.
//!
//! The namespace has no name and is removed when the thread ends. The kernel generates no
//! link-local addresses for the interfaces, so only frames from the test are sent.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrLike, SockaddrStorage, bind,
    recvmsg, sendmsg, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

pub(crate) const NEAR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Enters a new namespace and creates the veth pair. Each end has 4 queues.
pub(crate) fn enter() {
    unshare(CloneFlags::CLONE_NEWNET).expect("root is needed");
    ip("link set lo up");
    ip("link add near address 02:00:00:00:00:01 numrxqueues 4 numtxqueues 4 type veth \
        peer name far address 02:00:00:00:00:02 numrxqueues 4 numtxqueues 4");
    for end in ["near", "far"] {
        ip(&format!("link set {end} addrgenmode none up"));
        run("ethtool", &format!("-K {end} tx off tso off gso off gro off"));
    }
}

pub(crate) fn ip(arguments: &str) {
    run("ip", arguments);
}

pub(crate) fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split_whitespace()).output().expect(program);
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A packet socket on one interface. The socket sends complete frames, and receives the frames that
/// XDP passes.
pub(crate) struct Wire(OwnedFd);

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Wire {
    pub(crate) fn on(interface: &str) -> Self {
        let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
            .expect("packet socket");
        let index = nix::net::if_::if_nametoindex(interface).unwrap();
        let address = libc::sockaddr_ll {
            sll_family: u16::try_from(libc::AF_PACKET).unwrap(),
            sll_protocol: 3_u16.to_be(), // ETH_P_ALL
            sll_ifindex: i32::try_from(index).unwrap(),
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let size = u32::try_from(size_of_val(&address)).unwrap();
        // SAFETY: `address` is a complete `sockaddr_ll`.
        let address = unsafe { LinkAddr::from_raw((&raw const address).cast(), Some(size)) };
        bind(fd.as_raw_fd(), &address.unwrap()).unwrap();
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(10, 0)).unwrap();
        Self(fd)
    }

    pub(crate) fn send(&self, frame: &[u8]) {
        let sent = sendmsg::<()>(self.0.as_raw_fd(), &[IoSlice::new(frame)], &[], MsgFlags::empty(), None);
        assert_eq!(sent, Ok(frame.len()));
    }

    /// Returns the next received frame. Returns `None` if no frame arrives within 10 s. Frames that
    /// the interface itself sent are skipped.
    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        self.next(MsgFlags::empty())
    }

    /// Returns the next received frame without waiting.
    pub(crate) fn received(&self) -> Option<Vec<u8>> {
        self.next(MsgFlags::MSG_DONTWAIT)
    }

    fn next(&self, how: MsgFlags) -> Option<Vec<u8>> {
        loop {
            let mut frame = vec![0; 4096];
            let mut parts = [IoSliceMut::new(&mut frame)];
            let got = recvmsg::<SockaddrStorage>(self.0.as_raw_fd(), &mut parts, None, how);
            let got = got.ok()?;
            let outgoing = got.address.and_then(|from| from.as_link_addr().map(|link| link.pkttype() == 4));
            let length = got.bytes;
            if outgoing != Some(true) {
                frame.truncate(length);
                return Some(frame);
            }
        }
    }
}

/// Calls `holds` repeatedly until it returns `true`. The time limit of ten seconds is ten times
/// what a busy machine needs.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not within ten seconds: {what}");
}
