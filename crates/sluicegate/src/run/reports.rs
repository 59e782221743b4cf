//! Sends reports of the packet tracer to their receiver as UDP datagrams.
//!
//! Packet threads do not send reports themselves, because they do not format text, and because the
//! receiver may not be reachable through the interface of the VIPs. Sending never blocks: if the
//! kernel does not accept a datagram, the datagram is lost and the loss is logged.
//! `control_plane::trace_report` defines the content of a report.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::SystemTime;

use control_plane::trace_report::Report;
use forwarder::{Snapshot, TraceEvent};

/// The UDP sockets for reports. Each address family has one socket, which is opened on first use.
#[derive(Debug, Default)]
pub(super) struct Reports {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
}

impl Reports {
    /// Sends a report of a trace event if the current snapshot allows the receiver.
    pub(super) fn send_report(
        &mut self,
        event: &TraceEvent,
        unix_micros: u64,
        snapshot: &Snapshot,
        names: [&str; 2],
    ) {
        let Some(trace) = snapshot.trace() else { return };
        let receiver = event.mark.receiver;
        // A reload may have removed the receiver since the event.
        if !trace.receives(receiver) {
            return;
        }
        let report = Report::new(event, snapshot, names, unix_micros);
        let Some(datagram) = report.seal(&trace.key) else { return };
        if let Err(error) = self.send(&datagram, receiver) {
            // log: A trace report could not be sent to a receiver in `[trace]` for the reason in
            // `error`.
            tracing::warn!(%receiver, %error, "trace report lost");
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

/// Returns the number of microseconds since 1970.
pub(crate) fn unix_micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
