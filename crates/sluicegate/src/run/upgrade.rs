//! A new process in this one's place: `machine upgrade`.
//!
//! In: an order and a program. Out: a process that has everything, or everything as it was. The old process starts the new one with
//! a channel as its standard input (`leaving`); the new one sets up all that it can, says so, and takes what the old one
//! lets go (`coming`). The next hand-over waits until the one before has gone.
//! Not here: queues and connection tables (`datapath`), orders and verdicts (`control_plane`), what a number means (`compile`).
//! Invariant: until the new process has said that it has everything, and the old one has confirmed it, the old one can take all back.

mod channel;
mod coming;
mod leaving;

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

pub(super) use self::coming::Coming;

/// What the old process says first.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    /// Of all that is said here: another one says it in another way.
    protocol: u32,
    version: String,
    /// On CLOCK_MONOTONIC: since when both count.
    start_nanos: u64,
    /// Of the configuration in force, with its secrets.
    digest: [u8; 32],
    slots: Vec<SlotNumber>,
    slots_below: u32,
    services: BTreeMap<String, u32>,
    plane: PlaneFacts,
    /// How many follow.
    descriptors: usize,
    state: HandedState,
}

/// The number of a membership.
#[derive(Debug, Serialize, Deserialize)]
struct SlotNumber {
    pool: String,
    backend: String,
    address: IpAddr,
    /// A VIP, and whether it is its IPv4 addresses.
    vip: Option<(String, bool)>,
    slot: u32,
}

/// What the old process says later.
#[derive(Debug, Serialize, Deserialize)]
enum FromOld {
    /// Nothing changes any more: what changed since the offer. Once it is taken, the flows follow of tables that no thread has, if the
    /// offer names some.
    Frozen(HandedState),
    /// The queues of these threads are free, and the connection tables of those follow.
    Released { threads: Vec<u16>, tables: Vec<u16> },
    /// It has let go of its BFD sessions: their bytes follow, then so many descriptors. Only where there are some.
    Bfd { descriptors: usize },
    /// It listens nowhere any more, and asks no backend through the tunnel.
    Left,
    /// It ends.
    Kept,
}

/// What the new process says.
#[derive(Debug, Serialize, Deserialize)]
enum FromNew {
    /// It can take over.
    Ready {
        version: String,
        /// BFD sessions too; versions from before that say nothing of it.
        #[serde(default)]
        bfd: bool,
        /// Tables that no thread has, likewise.
        #[serde(default)]
        former: bool,
    },
    /// It has what the last message offered.
    Taken,
    /// It goes, for this reason.
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

/// On the clock that all processes of the machine share.
fn monotonic() -> Duration {
    // It fails for clocks that do not exist.
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
    fn a_version_from_before_bfd_and_former_tables_went_over_is_understood_and_takes_none() {
        let said = serde_json::from_str(r#"{"Ready": {"version": "0.1.0"}}"#).unwrap();
        assert!(matches!(said, FromNew::Ready { bfd: false, former: false, .. }), "{said:?}");
        let left = serde_json::from_str("\"Left\"").unwrap();
        assert!(matches!(left, FromOld::Left), "{left:?}");
    }
}
