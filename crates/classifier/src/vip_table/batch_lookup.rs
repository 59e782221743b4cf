//! What the packets of a batch are for, found before all else, one step for all of them before the next step of any: what one
//! waits for from memory comes while the others go on.
//!
//! Untagged frames alone are read here, by their fixed places; a packet that turns out to be for another address is looked up
//! as if nothing had been found. Not here: whether a frame is sound (`packet::parse`).
//! Invariant: a place's answer is that of the table whose stamp it has, so a new snapshot needs no clearing.

use super::longest::{Halves, Longest, Step, halves};
use super::ports::Interval;
use super::{EMPTY, Groups, VipTable, is_v4, words_of};

/// An answer for each place of a batch.
#[derive(Debug)]
pub struct BatchLookup {
    places: Box<[Place]>,
    lanes: Box<Lanes>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    address: [u8; 16],
    /// 0: none; no table has it.
    stamp: u64,
    /// The first of the VIP's intervals, or [`EMPTY`].
    pub(super) ports: u32,
    /// That one itself, or one without ports.
    pub(super) first: Interval,
}

/// Those that are walked together.
#[derive(Debug)]
struct Lanes {
    addresses: [Halves; LANES],
    steps: [Step; LANES],
    /// Lanes that go on.
    open: [u8; LANES],
    /// Where the answers go.
    places: [u8; LANES],
}

impl BatchLookup {
    /// For batches of at most `packets`.
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

    /// Looks up the frames of a batch, if the table has groups at all: an address of its own is found soon enough.
    #[inline]
    pub fn look_up<'a>(&mut self, table: &VipTable, mut frames: impl Iterator<Item = &'a [u8]>) {
        let Some(groups) = &table.groups else { return };
        for places in self.places.chunks_mut(LANES) {
            let count = self.lanes.enter(table, groups, places, &mut frames);
            self.lanes.walk(groups, count);
            self.lanes.leave(table, places, count);
        }
    }

    /// What was found for the packet at `place`, if that was for `address` and in the table with `stamp`.
    #[inline]
    pub(super) fn get(&self, place: usize, stamp: u64, address: &[u8; 16]) -> Option<&Place> {
        self.places.get(place).filter(|known| known.stamp == stamp && known.address == *address)
    }
}

impl Lanes {
    /// A lane for each packet whose address has no VIP of its own.
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

    /// Apart from its callers, which have no registers to spare.
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

    /// To the end. After its second step hardly any lane goes on.
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

/// The destination of an untagged frame, v4-mapped, if it is one of IP.
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

/// Enough that memory is the last to be waited for, few enough that all lanes stay in the nearest cache.
const LANES: usize = 64;
