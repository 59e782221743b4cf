//! Looks up the VIPs for all packets of a batch before the packets are processed. The lookups
//! advance together, step by step, so that their memory accesses overlap.
//!
//! The destination address is read at a fixed offset, which is correct only for frames without a
//! VLAN tag. If parsing finds a different destination address, this address is looked up
//! separately. Each result stores the number that identifies its table (the stamp), so results do
//! not have to be cleared when the snapshot changes.

use super::longest::{Halves, Longest, Step, halves};
use super::ports::Interval;
use super::{EMPTY, Groups, VipTable, is_v4, words_of};

/// The VIP lookup results for the packets of one batch.
#[derive(Debug)]
pub struct BatchLookup {
    places: Box<[Place]>,
    lanes: Box<Lanes>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    address: [u8; 16],
    /// The number that identifies the VIP table (its stamp), or 0 if the entry is unused.
    stamp: u64,
    /// The index of the VIP's first port interval, or [`EMPTY`].
    pub(super) ports: u32,
    /// A copy of the first port interval, or an empty interval.
    pub(super) first: Interval,
}

/// Lookups that advance together, one per lane.
#[derive(Debug)]
struct Lanes {
    addresses: [Halves; LANES],
    steps: [Step; LANES],
    /// The indices of the lanes whose lookup is not finished.
    open: [u8; LANES],
    /// The batch index of the packet that each lane looks up.
    places: [u8; LANES],
}

impl BatchLookup {
    /// Creates a buffer for batches of at most `packets` packets.
    pub fn new(packets: usize) -> Self {
        let none = Place { address: [0; 16], stamp: 0, ports: EMPTY, first: Interval::EMPTY };
        let lanes = Lanes {
            addresses: [[0; 2]; LANES],
            steps: [Step::NONE; LANES],
            open: [0; LANES],
            places: [0; LANES],
        };
        Self { places: vec![none; packets].into(), lanes: Box::new(lanes) }
    }

    /// Looks up the destination addresses of a batch if the table has prefix groups. Without prefix
    /// groups, no lookup in advance is needed, because the exact lookup is fast enough.
    #[inline]
    pub fn look_up<'a>(&mut self, table: &VipTable, mut frames: impl Iterator<Item = &'a [u8]>) {
        let Some(groups) = &table.groups else { return };
        for places in self.places.chunks_mut(LANES) {
            let count = self.lanes.enter(table, groups, places, &mut frames);
            self.lanes.walk(groups, count);
            self.lanes.leave(table, places, count);
        }
    }

    /// Returns the result for the packet at index `place`. Returns `None` if the stored result is
    /// for a different address or a different table.
    #[inline]
    pub(super) fn get(&self, place: usize, stamp: u64, address: &[u8; 16]) -> Option<&Place> {
        self.places.get(place).filter(|known| known.stamp == stamp && known.address == *address)
    }
}

impl Lanes {
    /// Assigns a lane to each packet whose destination address is not an exact VIP.
    #[inline]
    fn enter<'a>(
        &mut self,
        table: &VipTable,
        groups: &Groups,
        places: &mut [Place],
        frames: &mut impl Iterator<Item = &'a [u8]>,
    ) -> usize {
        let mut count = 0;
        let has_exact = table.has_exact;
        for ((number, place), frame) in (0..).zip(places.iter_mut()).zip(frames) {
            let Some(address) = destination(frame) else { continue };
            (place.address, place.stamp) = (address, groups.stamp);
            if has_exact && let Some(found) = table.address(words_of(&address)) {
                (place.ports, place.first) = (found.ports, table.interval(found.ports));
                continue;
            }
            self.addresses[count % LANES] = halves(u128::from_be_bytes(address));
            self.places[count % LANES] = number;
            count += 1;
        }
        count
    }

    /// This function is not inlined, because its callers have no registers to spare.
    #[inline(never)]
    fn walk(&mut self, groups: &Groups, count: usize) {
        for (step, address) in self.steps.iter_mut().zip(&self.addresses).take(count) {
            *step = groups.prefixes.start(u32::from(is_v4(address)), address);
        }
        self.go_on(&groups.prefixes, count);
        for (step, address) in self.steps.iter_mut().zip(&self.addresses).take(count) {
            let space = step.value().map_or(EMPTY, |group| group * 2 + u32::from(is_v4(address)));
            *step = groups.suffixes.start(space, address);
        }
        self.go_on(&groups.suffixes, count);
    }

    /// Finishes all lookups. Few lookups need more than two steps.
    #[inline]
    fn go_on<const LOW: bool>(&mut self, tree: &Longest<LOW>, count: usize) {
        let mut open = 0;
        for ((lane, step), address) in (0..).zip(self.steps.iter_mut()).zip(&self.addresses).take(count) {
            *step = tree.next(*step, address);
            self.open[open % LANES] = lane;
            open += usize::from(step.is_open());
        }
        for lane in self.open.iter().take(open) {
            let lane = usize::from(*lane) % LANES;
            self.steps[lane] = tree.finish(self.steps[lane], &self.addresses[lane]);
        }
    }

    #[inline]
    fn leave(&self, table: &VipTable, places: &mut [Place], count: usize) {
        for (step, place) in self.steps.iter().zip(&self.places).take(count) {
            let Some(place) = places.get_mut(usize::from(*place)) else { continue };
            place.ports = step.value().unwrap_or(EMPTY);
            place.first = table.interval(place.ports);
        }
    }
}

/// Returns the destination address of an IP frame without a VLAN tag. IPv4 addresses are
/// IPv4-mapped.
#[inline]
fn destination(frame: &[u8]) -> Option<[u8; 16]> {
    match frame.get(12..14)? {
        [0x86, 0xdd] => frame.get(38..)?.first_chunk().copied(),
        [0x08, 0x00] => {
            let [a, b, c, d] = *frame.get(30..)?.first_chunk()?;
            Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
        }
        _ => None,
    }
}

/// The number of lookups that advance together. The number is large enough to hide memory latency,
/// and small enough for all lanes to fit into the L1 cache.
const LANES: usize = 64;
