//! Implements `machine upgrade`, in which a new process takes over from the running process.
//!
//! The old process starts the new process and passes it a channel as standard input
//! (`old_process`). The new process prepares itself, reports that it is ready, and then takes over
//! the state and the sockets step by step (`new_process`). The old process can revert all steps
//! until both processes have confirmed the last step. The next upgrade must wait until the old
//! process has exited. The crate `datapath` hands over queues and connection tables, and
//! `control_plane` hands over overrides and health states.

mod channel;
mod new_process;
mod old_process;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use compile::{Numbers, SlotKey, VipFamily};
use control_plane::HandedState;
use datapath::PlaneFacts;
use forwarder::{ServiceId, SlotId};
use nix::time::{ClockId, clock_gettime};
use packet::Family;
use serde::{Deserialize, Serialize};

pub(super) use self::new_process::NewProcess;

/// The first message, with which the old process offers its state.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    /// The protocol version, which determines the format of all messages.
    protocol: u32,
    version: String,
    /// The start time on CLOCK_MONOTONIC, in nanoseconds. Both processes measure time from this
    /// moment.
    start_nanos: u64,
    /// The digest of the current configuration, including its secrets.
    digest: [u8; 32],
    slots: Vec<SlotNumber>,
    slots_below: u32,
    services: BTreeMap<String, u32>,
    plane: PlaneFacts,
    /// The number of file descriptors that follow this message.
    descriptors: usize,
    state: HandedState,
}

/// The slot ID of one backend in one leaf pool.
#[derive(Debug, Serialize, Deserialize)]
struct SlotNumber {
    pool: String,
    backend: String,
    address: IpAddr,
    /// The name of a VIP, and `true` for its IPv4 addresses or `false` for its IPv6 addresses.
    vip: Option<(String, bool)>,
    slot: u32,
}

/// The messages that the old process sends after the offer.
#[derive(Debug, Serialize, Deserialize)]
enum FromOld {
    /// The state is frozen. This message contains the current state, with all changes since the
    /// offer. If the offer lists connection tables of earlier processes, their flows follow after
    /// the confirmation.
    Frozen(HandedState),
    /// The queues of the listed `threads` are released, and the connection tables of the threads in
    /// `tables` follow.
    Released { threads: Vec<u16>, tables: Vec<u16> },
    /// The BFD sessions are released. The state of the sessions follows, and then the given number
    /// of file descriptors. This message is sent only if there are BFD sessions.
    Bfd { descriptors: usize },
    /// The old process has closed its listeners and the health check tunnel.
    Left,
    /// The old process confirms the upgrade and exits.
    Kept,
}

/// The messages that the new process sends.
#[derive(Debug, Serialize, Deserialize)]
enum FromNew {
    /// The new process is ready to take over.
    Ready {
        version: String,
        /// `true` if the new process can take over BFD sessions. Older versions do not send this
        /// field.
        #[serde(default)]
        bfd: bool,
        /// `true` if the new process can take over connection tables of earlier processes. Older
        /// versions do not send this field.
        #[serde(default)]
        previous: bool,
    },
    /// The new process has taken over the resources that the last message released.
    Taken,
    /// The new process failed and exits, with the reason for the failure.
    Refused(String),
}

impl Offer {
    fn numbers(&self) -> Numbers {
        let family = |is_v4: bool| if is_v4 { Family::V4 } else { Family::V6 };
        let view =
            |(vip, is_v4): &(String, bool)| VipFamily { vip: vip.as_str().into(), family: family(*is_v4) };
        let slot = |known: &SlotNumber| {
            let (pool, backend) = (known.pool.as_str().into(), known.backend.as_str().into());
            let key = SlotKey { pool, backend, address: known.address, vip: known.vip.as_ref().map(view) };
            (key, SlotId(known.slot))
        };
        Numbers {
            slots: self.slots.iter().map(slot).collect(),
            slots_below: self.slots_below,
            services: self.services.iter().map(|(name, id)| (name.clone(), ServiceId(*id))).collect(),
        }
    }
}

impl SlotNumber {
    fn of(key: &SlotKey, slot: SlotId) -> Self {
        let view = |at: &VipFamily| (at.vip.to_string(), at.family == Family::V4);
        Self {
            pool: key.pool.to_string(),
            backend: key.backend.to_string(),
            address: key.address,
            vip: key.vip.as_ref().map(view),
            slot: slot.0,
        }
    }
}

/// Returns the time on the monotonic clock, which is the same for all processes of the machine.
fn monotonic() -> Duration {
    // The call can only fail for a clock that does not exist.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const PROTOCOL: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_message_of_old_version_takes_no_bfd_and_no_tables() {
        let said = serde_json::from_str(r#"{"Ready": {"version": "0.1.0"}}"#).unwrap();
        assert!(matches!(said, FromNew::Ready { bfd: false, previous: false, .. }), "{said:?}");
        let left = serde_json::from_str("\"Left\"").unwrap();
        assert!(matches!(left, FromOld::Left), "{left:?}");
    }
}
