//! The task that sends packets from the TUN device to the backends.
//!
//! The task reads IP packets that the kernel routed to the device, encapsulates them and sends them
//! on raw sockets. Each packet increments exactly one counter, and no input causes a panic.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

use forwarder::{DropReason, Origin, Packet, Snapshot, address_frame};
use packet::{Family, parse};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::ports::PortKey;
use super::senders::Senders;
use super::{CheckPath, Shared, TunnelCounts};
use crate::lock;

pub(super) struct Pump {
    tun: AsyncFd<File>,
    wrapper: Wrapper,
    buffer: Vec<u8>,
}

/// Encapsulates and sends packets.
struct Wrapper {
    senders: Senders,
    shared: Arc<Shared>,
    /// The identification of the next frame, for outer IPv4 headers without the DF flag.
    identification: AtomicU16,
}

impl Pump {
    pub(super) fn new(tun: OwnedFd, senders: Senders, shared: Arc<Shared>) -> io::Result<Self> {
        let wrapper = Wrapper { senders, shared, identification: AtomicU16::new(0) };
        #[expect(
            deprecated,
            reason = "the replacement is unsafe, and a `File` owns its descriptor, which this constructor requires"
        )]
        let tun = AsyncFd::with_interest(File::from(tun), WATCHED)?;
        Ok(Self { tun, wrapper, buffer: vec![0; FRONT + MAX_PACKET] })
    }

    /// Sends packets until the TUN device is removed.
    pub(super) async fn run(mut self) {
        let error = loop {
            match self.turn().await {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        // log: The TUN device for health checks with `via = "vip"` was removed. Sluicegate creates
        // the device again. Find out which software removed the device.
        tracing::error!(%error, "TUN device lost");
    }

    /// Waits until the device has packets, and sends at most [`BATCH`] of them.
    async fn turn(&mut self) -> io::Result<()> {
        let mut ready = self.tun.ready(WATCHED).await?;
        let snapshot = self.wrapper.shared.live.current();
        for _ in 0..BATCH {
            let room = self.buffer.get_mut(FRONT..).unwrap_or_default();
            match ready.get_inner().read(room) {
                Ok(len) => {
                    let outcome = self.wrapper.carry(&snapshot, &mut self.buffer, len);
                    self.wrapper.count(outcome);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Failed {
    Unclaimed,
    Dropped(DropReason),
    Unsent,
}

impl Wrapper {
    /// Encapsulates and sends the packet in `buffer[FRONT..FRONT + len]`.
    fn carry(&self, snapshot: &Snapshot, buffer: &mut [u8], len: usize) -> Result<(), Failed> {
        let (path, mut packet) = self.claimed(buffer, len).ok_or(Failed::Unclaimed)?;
        let sent = match (path.slot, path.hop) {
            (slot, Some(hop)) => {
                let identification = self.identification.fetch_add(1, Ordering::Relaxed);
                match slot {
                    Some(slot) => snapshot
                        .originate_by(slot, &hop.next_hop, &mut packet, identification)
                        .map_err(Failed::Dropped)?,
                    None => address_frame(&mut packet, &hop.next_hop).map_err(Failed::Dropped)?,
                };
                self.senders.send_frame(packet.frame(), packet.interface())
            }
            (Some(slot), None) => {
                // The identification field is 0, because the kernel sets it if DF is clear.
                let link_len = snapshot.originate(slot, &mut packet, 0).map_err(Failed::Dropped)?;
                let slot = snapshot.slots().get(slot.0 as usize).ok_or(Failed::Unsent)?;
                let frame = packet.frame();
                if slot.encap_overhead() == 0 {
                    self.senders.send_frame(frame, packet.interface())
                } else {
                    self.senders.send_packet(frame.get(link_len..).unwrap_or_default(), slot.address)
                }
            }
            (None, None) => return Err(Failed::Unclaimed),
        };
        sent.map_err(|error| {
            tracing::debug!(%error, "check packet not sent");
            Failed::Unsent
        })
    }

    /// Returns the path of the check and a frame with the packet. Returns `None` if the packet was
    /// not sent by a check.
    fn claimed<'a>(&self, buffer: &'a mut [u8], len: usize) -> Option<(CheckPath, Packet<'a>)> {
        let family = match buffer.get(FRONT)? >> 4 {
            4 => Family::V4,
            6 => Family::V6,
            _ => return None,
        };
        let start = FRONT - LINK;
        let link = buffer.get_mut(start..)?.first_chunk_mut::<LINK>()?;
        let [high, low] = family.ethertype().to_be_bytes();
        *link = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low];
        let packet = Packet::new(buffer, start, FRONT + len, Origin::Wire);
        let parsed = parse(packet.frame()).ok()?;
        let key = PortKey { is_ipv4: family == Family::V4, protocol: parsed.protocol, port: parsed.src_port };
        let canonical = |bytes: [u8; 16]| IpAddr::from(bytes).to_canonical();
        let addresses = parsed.addresses(packet.frame());
        let destination = canonical(addresses.dst);
        if self.shared.own.beside(destination) != Some(canonical(addresses.src)) {
            return None;
        }
        let path = self.shared.ports.find(key, destination, Instant::now())?;
        Some((path, packet))
    }

    fn count(&self, outcome: Result<(), Failed>) {
        let TunnelCounts { sent, no_port, no_next_hop, too_big, errors } = &mut *lock(&self.shared.counts);
        *match outcome {
            Ok(()) => sent,
            Err(Failed::Unclaimed) => no_port,
            Err(Failed::Dropped(DropReason::NoNextHop)) => no_next_hop,
            Err(Failed::Dropped(DropReason::TooBig)) => too_big,
            Err(Failed::Dropped(_) | Failed::Unsent) => errors,
        } += 1;
    }
}

/// The events of the TUN device for which the task waits. The removal of the device is an error
/// event.
const WATCHED: Interest = Interest::READABLE.add(Interest::ERROR);
/// The size of the Ethernet header.
const LINK: usize = 14;
/// The space before a packet, for the longest outer headers and a link header.
const FRONT: usize = 64 + LINK;
/// The size of the longest IP packet.
const MAX_PACKET: usize = 65_535;
/// The maximum number of packets per iteration, so that other tasks can run.
const BATCH: usize = 64;
