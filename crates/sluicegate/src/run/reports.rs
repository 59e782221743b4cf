//! Reports of the packet tracer on their way to the receiver.
//!
//! In: what packet threads saw. Out: a UDP datagram each, by an ordinary socket of the kernel. A packet thread can't send
//! them: it knows no names, builds no text, and its frames leave by the interface of the VIPs, where the receiver need not be.
//! Not here: who receives reports and how often (`forwarder`), what a report says (`control_plane::trace_report`).
//! Invariant: nothing here waits. What the kernel doesn't take at once is lost, and logged.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::SystemTime;

use control_plane::trace_report::Report;
use forwarder::{Snapshot, TraceEvent};

/// A socket a family, opened when it is first wanted.
#[derive(Debug, Default)]
pub(super) struct Reports {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
}

impl Reports {
    /// Reports an event at `unix_micros`, of the cluster and machine that `names` has; nothing under a snapshot that no longer
    /// traces.
    pub(super) fn send_report(
        &mut self,
        event: &TraceEvent,
        unix_micros: u64,
        snapshot: &Snapshot,
        names: [&str; 2],
    ) {
        let Some(trace) = snapshot.trace() else { return };
        let receiver = event.mark.receiver;
        // Asked once more: a reload may have come in between.
        if !trace.receives(receiver) {
            return;
        }
        let report = Report::new(event, snapshot, names, unix_micros);
        let Some(datagram) = report.seal(&trace.key) else { return };
        if let Err(error) = self.send(&datagram, receiver) {
            tracing::warn!(%receiver, %error, "a report of the packet tracer is lost");
        }
    }

    fn send(&mut self, datagram: &[u8], to: SocketAddr) -> std::io::Result<()> {
        let (place, any): (_, IpAddr) = match to {
            SocketAddr::V4(_) => (&mut self.v4, Ipv4Addr::UNSPECIFIED.into()),
            SocketAddr::V6(_) => (&mut self.v6, Ipv6Addr::UNSPECIFIED.into()),
        };
        let socket = match place {
            Some(socket) => socket,
            None => {
                let socket = UdpSocket::bind((any, 0))?;
                socket.set_nonblocking(true)?;
                place.insert(socket)
            }
        };
        socket.send_to(datagram, to).map(drop)
    }
}

/// Microseconds since 1970.
pub(crate) fn unix_micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
