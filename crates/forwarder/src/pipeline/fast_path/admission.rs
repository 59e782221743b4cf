//! The first step of the fast path while the thread is overloaded: drops SYNs above the budget, and
//! reads the headers of the other packets. See the module `overload`.

use conntrack::Signal;
use packet::{Family, FastHeaders};

use super::{FastBatch, Marks, may_be_fast};
use crate::pipeline::state::FlowPacket;
use crate::{HashPolicy, Packet};

/// The SYNs of a batch that are still admitted. Each address family has a separate budget, and so
/// do packets with VLAN tags, so that a flood of one kind does not use up the budgets of the
/// others.
#[derive(Clone, Copy, Debug)]
pub(in crate::pipeline) struct Admission {
    left: [u32; 4],
}

impl Admission {
    /// Creates a budget of `each` SYNs per kind of packet.
    pub(in crate::pipeline) const fn new(each: u32) -> Self {
        Self { left: [each; 4] }
    }

    /// Returns `true` if a SYN of this kind is above the budget.
    #[inline(always)]
    fn refuses(&mut self, family: Family, is_tagged: bool) -> bool {
        let kind = usize::from(family == Family::V6) + 2 * usize::from(is_tagged);
        match self.left.get_mut(kind) {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }

    /// Returns `true` if the frame contains a SYN above the budget. The frame is not an untagged
    /// IPv4 frame.
    #[inline(never)]
    fn refuses_other(&mut self, frame: &[u8]) -> bool {
        let Some(headers) = FastHeaders::read(frame) else { return false };
        let signal = FlowPacket::signal_of(HashPolicy::FiveTuple, headers.protocol, headers.tcp_flags);
        signal == Signal::Syn && self.refuses(headers.family, headers.l3 != FastHeaders::UNTAGGED)
    }
}

/// The result of [`FastBatch::read_admitted`].
pub(in crate::pipeline) struct Read {
    /// The number of admitted packets.
    pub(in crate::pipeline) admitted: usize,
    /// `true` if admitted packets that `read_v4` could not read may take the fast path.
    pub(in crate::pipeline) has_unread: bool,
}

impl FastBatch {
    /// Does the same as [`FastBatch::read_v4`], but only for the packets that `admission` admits.
    /// Writes the indexes of these packets to `numbers`.
    #[inline(never)]
    pub(in crate::pipeline) fn read_admitted(
        &mut self,
        packets: &[Packet<'_>],
        mut admission: Admission,
        numbers: &mut [u16],
    ) -> Read {
        let (mut admitted, mut read, mut has_unread) = (0, 0, false);
        for (number, packet) in (0..).zip(packets) {
            let (frame, may_be_fast) = (packet.frame(), may_be_fast(packet.origin()));
            if may_be_fast && FastHeaders::is_untagged_syn_v4(frame) && admission.refuses(Family::V4, false) {
                continue;
            }
            let (Some(place), Some(to)) = (self.places.get_mut(admitted), numbers.get_mut(admitted)) else {
                break;
            };
            if !may_be_fast {
                place.marks = Marks::NONE;
            } else {
                match place.read_v4(frame) {
                    Ok(()) => read += 1,
                    Err(true) => {}
                    Err(false) if admission.refuses_other(frame) => continue,
                    Err(false) => has_unread = true,
                }
            }
            *to = number;
            admitted += 1;
        }
        self.has_read = read > 0;
        self.has_others = read < admitted;
        Read { admitted, has_unread }
    }
}
