//! Sends ICMP echo requests of a chosen size with the DF bit set. The requests ignore the path MTU
//! that the kernel has learned. The socket is an unprivileged ICMP socket if
//! `net.ipv4.ping_group_range` allows it. Otherwise it is a raw socket, which needs CAP_NET_RAW.
//!
//! See ip(7) for `IP_MTU_DISCOVER`, ipv6(7) for `IPV6_MTU_DISCOVER`, RFC 792, and RFC 4443 §4.1.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, recvmsg, sendto, socket,
};

/// Sends ICMP echo requests of one IP version and receives the replies.
#[derive(Debug)]
pub struct Pinger {
    socket: OwnedFd,
    is_ipv4: bool,
    /// `true` for a raw socket. On a raw socket, this code sets the ID of each request. On an
    /// unprivileged socket, the kernel sets the ID.
    is_raw: bool,
    id: u16,
}

impl Pinger {
    /// Opens a socket in the network namespace of the calling thread. Requests are sent from
    /// `source`. If `source` is `None`, the kernel chooses the address.
    ///
    /// # Errors
    /// The call fails if the kernel allows neither type of socket, or if `source` is not an address
    /// of this machine.
    pub fn open(is_ipv4: bool, source: Option<IpAddr>) -> io::Result<Self> {
        let (family, protocol) = if is_ipv4 {
            (AddressFamily::Inet, SockProtocol::Icmp)
        } else {
            (AddressFamily::Inet6, SockProtocol::IcmpV6)
        };
        let open = |kind| socket(family, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, protocol);
        let (socket, is_raw) = match open(SockType::Datagram) {
            Ok(socket) => (socket, false),
            Err(_) => (open(SockType::Raw)?, true),
        };
        // Replies are matched by ID, so a raw socket needs an ID that no other process uses at the
        // same time. The ID is derived from the process ID.
        let [.., high, low] = std::process::id().to_be_bytes();
        let pinger = Self { socket, is_ipv4, is_raw, id: u16::from_be_bytes([high, low]) };
        pinger.forbid_fragments()?;
        if let Some(source) = source {
            bind(pinger.socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0)))?;
        }
        Ok(pinger)
    }

    /// Sends one echo request. The IP packet is `packet_bytes` bytes long.
    ///
    /// # Errors
    /// Returns the kernel's error if the packet is too long for the interface, if there is no
    /// route, or if a queue is full.
    pub fn send(&self, to: IpAddr, sequence: u16, packet_bytes: usize) -> io::Result<()> {
        let request = request(self.is_ipv4, self.id, sequence, packet_bytes);
        let to = SockaddrStorage::from(SocketAddr::new(to, 0));
        sendto(self.socket.as_raw_fd(), &request, &to, MsgFlags::empty())?;
        Ok(())
    }

    /// Waits for the next reply and returns its source and sequence number. Returns `None` if no
    /// reply arrives within `patience`.
    ///
    /// # Errors
    /// The call fails if the socket reports an error.
    pub fn receive(&self, patience: Duration) -> io::Result<Option<(IpAddr, u16)>> {
        let end = std::time::Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(std::time::Instant::now());
            let millis = u16::try_from(left.as_millis()).unwrap_or(u16::MAX);
            let mut waiting = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            if poll(&mut waiting, PollTimeout::from(millis))? == 0 && left.as_millis() <= millis.into() {
                return Ok(None);
            }
            if let Some(reply) = self.take()? {
                return Ok(Some(reply));
            }
        }
    }

    /// Reads one message. Returns `None` if the packet is not a reply to a request of this socket.
    fn take(&self) -> io::Result<Option<(IpAddr, u16)>> {
        let mut buffer = [0; REPLY_HEAD];
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let received =
            recvmsg::<SockaddrStorage>(self.socket.as_raw_fd(), &mut parts, None, MsgFlags::empty());
        let (length, from) = match received {
            Ok(message) => (message.bytes, message.address),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let id = self.is_raw.then_some(self.id);
        let head = buffer.get(..length).unwrap_or_default();
        let sequence = sequence_of(self.is_ipv4, self.is_ipv4 && self.is_raw, id, head);
        Ok(from.as_ref().and_then(address_of).zip(sequence))
    }

    /// Makes the kernel set the DF bit and ignore the learned path MTU. The kernel then refuses
    /// only packets that exceed the MTU of the interface.
    fn forbid_fragments(&self) -> io::Result<()> {
        let (level, option, probe) = if self.is_ipv4 {
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
        };
        self.set(level, option, probe)?;
        if self.is_ipv4 { Ok(()) } else { self.set(libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1) }
    }

    fn set(&self, level: i32, option: i32, value: i32) -> io::Result<()> {
        // SAFETY: `value` is a complete `int` that outlives the call, and its size is passed to the
        // call.
        let answer = unsafe {
            libc::setsockopt(self.socket.as_raw_fd(), level, option, (&raw const value).cast(), INT_BYTES)
        };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Returns an ICMP echo request that fills an IP packet of `packet_bytes` bytes. Only the ICMPv4
/// checksum is computed here, because the kernel computes the ICMPv6 checksum.
fn request(is_ipv4: bool, id: u16, sequence: u16, packet_bytes: usize) -> Vec<u8> {
    let header = if is_ipv4 { IPV4_HEADER } else { IPV6_HEADER };
    let mut bytes = vec![0; packet_bytes.saturating_sub(header).max(ICMP_HEADER)];
    let [a, b] = id.to_be_bytes();
    let [c, d] = sequence.to_be_bytes();
    let kind = if is_ipv4 { ECHO_REQUEST_V4 } else { ECHO_REQUEST_V6 };
    bytes.splice(..ICMP_HEADER, [kind, 0, 0, 0, a, b, c, d]);
    if is_ipv4 {
        let [high, low] = checksum(&bytes).to_be_bytes();
        bytes.splice(2..4, [high, low]);
    }
    bytes
}

/// Returns the sequence number of an echo reply. If `id` is `Some`, replies with a different ID are
/// ignored. `has_ip_header` is `true` for raw IPv4 sockets, which receive the packet with its IP
/// header.
fn sequence_of(is_ipv4: bool, has_ip_header: bool, id: Option<u16>, bytes: &[u8]) -> Option<u16> {
    let skip = if has_ip_header { usize::from(bytes.first()? & 0x0f) * 4 } else { 0 };
    let &[kind, _, _, _, a, b, c, d] = bytes.get(skip..)?.first_chunk::<ICMP_HEADER>()?;
    let wanted = if is_ipv4 { ECHO_REPLY_V4 } else { ECHO_REPLY_V6 };
    let is_mine = id.is_none_or(|id| id == u16::from_be_bytes([a, b]));
    (kind == wanted && is_mine).then_some(u16::from_be_bytes([c, d]))
}

/// Computes the Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum & 0xffff).unwrap_or(0)
}

fn address_of(from: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = from.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| from.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const ICMP_HEADER: usize = 8;
const ECHO_REQUEST_V4: u8 = 8;
const ECHO_REPLY_V4: u8 = 0;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
/// The length of the longest IPv4 header and an ICMP header, in bytes.
const REPLY_HEAD: usize = 60 + ICMP_HEADER;
/// `sizeof(int)` on Linux.
const INT_BYTES: libc::socklen_t = 4;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn request_has_the_wanted_length_and_a_valid_checksum() {
        for (is_ipv4, bytes) in [(true, 1_524), (true, 577), (false, 1_540), (false, 1_280)] {
            let made = request(is_ipv4, 0x1234, 7, bytes);
            assert_eq!(made.len() + if is_ipv4 { 20 } else { 40 }, bytes);
            assert_eq!(&made[4..8], [0x12, 0x34, 0, 7]);
            assert_eq!(made[0], if is_ipv4 { 8 } else { 128 });
            assert_eq!(checksum(&made) == 0, is_ipv4);
        }
    }

    #[test]
    fn checksum_matches_rfc_1071() {
        // The example bytes of RFC 1071 section 3 have the sum ddf2.
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(checksum(&[0xff]), 0x00ff);
        assert_eq!(checksum(&[]), 0xffff);
    }

    #[test]
    fn sequence_of_accepts_only_replies_to_the_id() {
        let reply = [0, 0, 0, 0, 0x12, 0x34, 0, 7];
        assert_eq!(sequence_of(true, false, None, &reply), Some(7));
        assert_eq!(sequence_of(true, false, Some(0x1234), &reply), Some(7));
        assert_eq!(sequence_of(true, false, Some(0x1235), &reply), None);
        assert_eq!(sequence_of(false, false, None, &reply), None);
        assert_eq!(sequence_of(true, false, None, &reply[..7]), None);
        let mut with_header = vec![0x46; 24];
        with_header.extend(reply);
        assert_eq!(sequence_of(true, true, Some(0x1234), &with_header), Some(7));
        assert_eq!(sequence_of(true, true, None, &[]), None);
        let six = [129, 0, 0, 0, 0, 0, 1, 0];
        assert_eq!(sequence_of(false, false, None, &six), Some(256));
    }

    #[test]
    fn pinger_receives_a_full_size_reply_from_loopback() {
        // Opening the socket needs CAP_NET_RAW or a group in `net.ipv4.ping_group_range`. Without
        // either, the test is skipped.
        let Ok(pinger) = Pinger::open(true, None) else { return };
        pinger.send(IpAddr::V4(Ipv4Addr::LOCALHOST), 9, 1_500).unwrap();
        let reply = pinger.receive(Duration::from_secs(10)).unwrap();
        assert_eq!(reply, Some((IpAddr::V4(Ipv4Addr::LOCALHOST), 9)));
        let error = pinger.send(IpAddr::V4(Ipv4Addr::LOCALHOST), 9, 70_000).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    }
}
