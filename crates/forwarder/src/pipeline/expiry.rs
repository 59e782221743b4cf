//! Limits the lifetime of values that are stored on a failover backend. If the backend of a key is
//! not serving, writes to this key go to a failover backend, with a shorter time to live
//! (`failover.ttl`). This module rewrites such requests and updates their lengths and checksums.
//! The crate `kv-switch` implements the time formats, and the module `key_choice` implements the
//! placement of keys.
//!
//! Only a request with a correct checksum, or without a checksum, is rewritten.

use std::ops::ControlFlow;

use kv_switch::{Datagram, KeyRoom, Request, ShortLife, Shortened};
use packet::{Fragment, refit_udp, udp_checksum_ok};

use super::Core;
use super::keyed::datagram;
use super::state::{Batch, PacketState};
use crate::keyed::refused;
use crate::{DropReason, KeyRules, Packet, Service, Verdict, WallClock};

/// The state that one packet thread needs to limit the lifetime of values on substitute servers.
#[derive(Debug)]
pub(super) struct ShortLived {
    clock: WallClock,
    /// A buffer for one rewritten payload. The kernel allocates its pages on first use.
    room: Box<[u8]>,
}

impl ShortLived {
    pub(super) fn new(clock: WallClock) -> Self {
        Self { clock, room: vec![0; LONGEST].into_boxed_slice() }
    }

    /// Returns the maximum lifetime of a value on a failover backend. Returns `None` if the
    /// client's requested lifetime is not limited.
    pub(super) fn life(&self, rules: &KeyRules) -> Option<ShortLife> {
        let now = || u32::try_from(self.clock.unix_seconds()).unwrap_or(u32::MAX);
        rules.failover_ttl.map(|seconds| ShortLife { seconds, now: now() })
    }

    /// Returns the request with a shorter lifetime, or `None` if the request needs no change.
    ///
    /// # Errors
    /// Returns a drop reason if the payload is not a valid request, or if the rewritten request
    /// does not fit into the buffer.
    pub(super) fn shorten(&mut self, rules: &KeyRules, payload: &[u8]) -> Result<Option<&[u8]>, DropReason> {
        let Some(life) = self.life(rules) else { return Ok(None) };
        let ask = rules.application.read(Datagram::whole(payload)).map_err(refused)?;
        match rules.application.shorten_life(&Request { payload, ask: &ask }, life, &mut self.room) {
            Shortened::Unchanged => Ok(None),
            Shortened::To(length) => Ok(self.room.get(..length)),
            Shortened::NoRoom => Err(DropReason::KvShortLife),
        }
    }
}

impl ShortLived {
    /// Shortens the lifetimes in a request for several keys (`gat`), if one of the keys is served
    /// by a failover backend.
    pub(super) fn of_several(
        &mut self,
        batch: &Batch<'_>,
        service: &Service,
        payload: &[u8],
    ) -> Result<Option<&[u8]>, DropReason> {
        let keyed = service.keyed.as_deref().filter(|keyed| keyed.rules.failover_ttl.is_some());
        let Some(keyed) = keyed else { return Ok(None) };
        let rules = &*keyed.rules;
        let ask = rules.application.read(Datagram::whole(payload)).map_err(refused)?;
        let mut is_away = false;
        rules.application.items(payload, &ask, &mut |item| {
            let mut room = KeyRoom::default();
            let place = rules.place(rules.application.key(payload, &item, &mut room));
            let chosen = batch.snapshot.select_key(service, keyed, place);
            is_away = chosen.is_some_and(|chosen| batch.snapshot.is_away(service, keyed, place, chosen.slot));
            if is_away { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if is_away { self.shorten(rules, payload) } else { Ok(None) }
    }
}

impl Core {
    /// Runs stage 3 (rewriting) for a request that stores a value on a failover backend.
    #[cold]
    pub(super) fn write_short_lived(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        state: &PacketState,
    ) -> Verdict {
        let mut state = PacketState { is_away: false, ..*state };
        match self.shorten(batch, packet, &mut state) {
            Ok(()) => self.write(batch, packet, &state),
            Err(reason) => Verdict::Drop(reason),
        }
    }

    fn shorten(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        state: &mut PacketState,
    ) -> Result<(), DropReason> {
        if state.parsed.fragment != Fragment::None {
            return Err(DropReason::KvShortLife);
        }
        if !udp_checksum_ok(packet.frame(), &state.parsed) {
            return Err(DropReason::Malformed);
        }
        let service = batch.snapshot.service(state.service);
        let keyed = service.keyed.as_deref().ok_or(DropReason::NoBackend)?;
        let payload = datagram(packet, &state.parsed).ok_or(DropReason::Malformed)?.payload();
        let Some(payload) = self.keyed.short_lived.shorten(&keyed.rules, payload)? else { return Ok(()) };
        let (l3, l4) = (usize::from(state.parsed.l3), usize::from(state.parsed.l4));
        let end = l4 + UDP_HEADER + payload.len();
        let start = packet.start();
        packet.set_bounds(start, start + end);
        let frame = packet.frame_mut();
        frame.get_mut(l4 + UDP_HEADER..end).ok_or(DropReason::KvShortLife)?.copy_from_slice(payload);
        let is_written = frame.get_mut(l3..end).is_some_and(|ip| refit_udp(ip, l4 - l3));
        if !is_written {
            return Err(DropReason::KvShortLife);
        }
        state.parsed.end = u16::try_from(end).map_err(|_| DropReason::KvShortLife)?;
        self.counters.short_lived.add(1);
        Ok(())
    }
}

const UDP_HEADER: usize = 8;
/// The maximum length of a rewritten payload, in bytes: the longest UDP payload plus one time
/// value.
const LONGEST: usize = 65_536 + 16;
