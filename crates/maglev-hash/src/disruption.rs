//! Counts the table slots that are assigned to a different backend when the set of backends or a
//! weight changes. Slots are counted separately for each reason why the backend changed.
//!
//! Backends are compared by name, because ranks change when a backend is added or removed. Every
//! slot covers an equal range of hashes, so a fraction of the slots is also the expected fraction
//! of the flows.

use crate::{Backend, Table};
use alloc::vec::Vec;
use core::cmp::Ordering;

/// The number of slots in a comparison of two tables, by result: unchanged backend, or the reason
/// why the backend changed. A slot to which several reasons apply is counted in the field that is
/// declared first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disruption {
    /// Slots with the same backend in both tables.
    pub unchanged: u32,
    /// Slots whose old backend was removed or now has weight 0.
    pub backend_gone: u32,
    /// Slots whose new backend was added or had weight 0 before.
    pub backend_new: u32,
    /// Slots that moved because the old backend lost weight or the new backend gained weight. Both
    /// tables contain both backends.
    pub weight_changed: u32,
    /// Slots that moved between two backends even though the old backend did not lose weight and
    /// the new backend did not gain weight. Maglev causes these moves because it keeps the shares
    /// even.
    pub moved_needlessly: u32,
}

impl Disruption {
    /// Returns the number of slots whose backend changed.
    #[must_use]
    pub fn changed(&self) -> u32 {
        self.backend_gone + self.backend_new + self.weight_changed + self.moved_needlessly
    }
}

/// The error that [`disruption`] returns if the tables differ in size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot compare a table of {before} slots with a table of {after} slots")]
pub struct SizesDiffer {
    /// The number of slots in the old table.
    pub before: u32,
    /// The number of slots in the new table.
    pub after: u32,
}

/// Counts the slots whose backend differs between two tables, separately for each reason why the
/// backend changed.
///
/// # Errors
/// Returns [`SizesDiffer`] if the tables differ in size.
///
/// # Cost
/// `O(M + N)` for `M` slots and `N` backends, with two loads per slot and no hashing. The function
/// is intended for the control plane.
pub fn disruption(before: &Table, after: &Table) -> Result<Disruption, SizesDiffer> {
    if before.size() != after.size() {
        return Err(SizesDiffer { before: before.size(), after: after.size() });
    }
    let (old, new) = (pair(before, after), pair(after, before));
    let mut count = Disruption::default();
    for (from, to) in before.iter().zip(after.iter()) {
        let (was, is) = (&old[from.index_by_name()], &new[to.index_by_name()]);
        let counter = if was.other_rank == Some(to.index_by_name()) {
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

/// A backend of one table, with its rank and weight in the other table.
struct Paired {
    weight: u32,
    /// The rank is `None` if the other table does not contain the backend.
    other_rank: Option<usize>,
    /// The weight is 0 if the other table does not contain the backend.
    other_weight: u32,
}

/// Returns the backends of `this` by rank, each paired with the backend of the same name in
/// `other`. Both tables sort their backends by name.
fn pair(this: &Table, other: &Table) -> Vec<Paired> {
    let mut others = other.backends().enumerate().peekable();
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
