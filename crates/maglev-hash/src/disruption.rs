//! What a change of backends or weights moves.
//!
//! In: two tables of one size. Out: changed slots, by cause.
//! Backends are compared by name: ranks shift when one comes or goes.
//! Not here: how many flows that is; equal slots stand for equal ranges of hashes, so shares of slots are shares of
//! new flows.
//! Source: Maglev §3.4 (minimal disruption) and §5.3, Figure 12.

use crate::{Backend, Table};
use alloc::vec::Vec;
use core::cmp::Ordering;

/// Slots of two tables, by what became of them. Each slot is counted once, under the first cause that fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disruption {
    /// Same backend before and after.
    pub unchanged: u32,
    /// The old backend is out: no longer given, or its weight is now 0.
    pub backend_gone: u32,
    /// The new backend was not in before: not given, or with weight 0.
    pub backend_new: u32,
    /// Both serve before and after, and the old one's weight fell or the new one's rose.
    pub weight_changed: u32,
    /// None of these: the price of Maglev's even shares.
    pub moved_needlessly: u32,
}

impl Disruption {
    /// Slots that answer with another backend than before.
    #[must_use]
    pub fn changed(&self) -> u32 {
        self.backend_gone + self.backend_new + self.weight_changed + self.moved_needlessly
    }
}

/// Tables of different sizes have no slots in common to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tables of {before} and {after} slots cannot be compared")]
pub struct SizesDiffer {
    /// Slots of the table before.
    pub before: u32,
    /// Slots of the table after.
    pub after: u32,
}

/// Counts the slots that changed between two tables, by cause.
///
/// # Errors
/// [`SizesDiffer`].
/// # Cost
/// `O(M + N)`: two loads a slot, no hashing. Control plane.
pub fn disruption(before: &Table, after: &Table) -> Result<Disruption, SizesDiffer> {
    if before.size() != after.size() {
        return Err(SizesDiffer { before: before.size(), after: after.size() });
    }
    let (old, new) = (pair(before, after), pair(after, before));
    let mut count = Disruption::default();
    for (from, to) in before.iter().zip(after.iter()) {
        let (was, is) = (&old[from as usize], &new[to as usize]);
        let counter = if was.other_rank == Some(to) {
            &mut count.unchanged
        } else if was.other_weight == 0 {
            &mut count.backend_gone
        } else if is.other_weight == 0 {
            &mut count.backend_new
        } else if was.other_weight < was.weight || is.weight > is.other_weight {
            &mut count.weight_changed
        } else {
            &mut count.moved_needlessly
        };
        *counter += 1;
    }
    Ok(count)
}

/// A backend of one table, and what the other table makes of its name.
struct Paired {
    weight: u32,
    /// `None`: the other table has not heard of it.
    other_rank: Option<u32>,
    /// 0 when it has not heard of it.
    other_weight: u32,
}

/// The backends of `this` by rank, each with its namesake in `other`: both sides come in the order of names.
fn pair(this: &Table, other: &Table) -> Vec<Paired> {
    let mut others = (0u32..).zip(other.backends()).peekable();
    let namesake = |mine: Backend<'_>| loop {
        match others.peek().map(|(rank, theirs)| (theirs.name.cmp(mine.name), *rank, theirs.weight)) {
            Some((Ordering::Less, ..)) => _ = others.next(),
            Some((Ordering::Equal, rank, weight)) => {
                return Paired { weight: mine.weight, other_rank: Some(rank), other_weight: weight };
            }
            _ => return Paired { weight: mine.weight, other_rank: None, other_weight: 0 },
        }
    };
    this.backends().map(namesake).collect()
}
