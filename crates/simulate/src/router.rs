//! The next hops of a router: which machine a flow's packets reach.
//!
//! In: the machines that it may send to, and where it sent before. Out: next hops, of which a flow has that at its hash
//! modulo their number. Not here: hashes, weights of next hops, timers of resilient groups.
//! Invariant: with buckets, shares are even to a bucket, and no more buckets move than that takes.

use crate::scenario::Router;

/// The next hops after `before`, with the machines of `live`, which ascend.
pub(crate) fn next_hops(router: Router, before: &[u16], live: &[u16]) -> Vec<u16> {
    match router {
        Router::Plain => live.to_vec(),
        Router::Resilient { .. } if live.is_empty() => Vec::new(),
        Router::Resilient { buckets } if before.is_empty() => {
            live.iter().copied().cycle().take(buckets as usize).collect()
        }
        Router::Resilient { .. } => rebalanced(before, live),
    }
}

/// A machine above its quota gives up its last buckets; those, and the ones of machines that are gone, go in their order to the first
/// machine below its quota.
fn rebalanced(before: &[u16], live: &[u16]) -> Vec<u16> {
    let mut left = quotas(before, live);
    let mut after = Vec::with_capacity(before.len());
    for &owner in before {
        let place = live.binary_search(&owner).ok().filter(|&place| left[place] > 0);
        after.push(place.map(|place| {
            left[place] -= 1;
            owner
        }));
    }
    let mut free = live.iter().zip(left).flat_map(|(&machine, left)| std::iter::repeat_n(machine, left));
    after.into_iter().map(|kept| kept.or_else(|| free.next()).unwrap_or_default()).collect()
}

/// How many buckets each machine is to have: those that have most get one more where it does not come out even.
fn quotas(before: &[u16], live: &[u16]) -> Vec<usize> {
    let (share, more) = (before.len() / live.len(), before.len() % live.len());
    let mut order: Vec<usize> = (0..live.len()).collect();
    let has: Vec<usize> =
        live.iter().map(|machine| before.iter().filter(|one| *one == machine).count()).collect();
    order.sort_by_key(|&place| (std::cmp::Reverse(has[place]), place));
    let mut quotas = vec![share; live.len()];
    order.into_iter().take(more).for_each(|place| quotas[place] += 1);
    quotas
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RESILIENT: Router = Router::Resilient { buckets: 64 };

    #[test]
    fn a_router_of_buckets_moves_those_of_the_machine_that_left_and_no_other() {
        let before = next_hops(RESILIENT, &[], &[0, 1, 2, 3]);
        let after = next_hops(RESILIENT, &before, &[0, 1, 3]);
        for (old, new) in before.iter().zip(&after) {
            assert!(if *old == 2 { *new != 2 } else { new == old });
        }
        assert_eq!(next_hops(RESILIENT, &after, &[]), [0; 0]);
        assert_eq!(next_hops(Router::Plain, &before, &[0, 1, 3]), [0, 1, 3]);
    }

    proptest! {
        /// Against the least that any router must move: buckets of the gone, and what machines have above an even share.
        #[test]
        fn shares_are_even_and_as_few_buckets_move_as_can(
            first in prop::collection::btree_set(0_u16..12, 1..12),
            second in prop::collection::btree_set(0_u16..12, 1..12),
        ) {
            let (first, second): (Vec<u16>, Vec<u16>) = (first.into_iter().collect(), second.into_iter().collect());
            let before = next_hops(RESILIENT, &[], &first);
            let after = next_hops(RESILIENT, &before, &second);
            let count = |hops: &[u16], machine: u16| hops.iter().filter(|hop| **hop == machine).count();
            let shares: Vec<usize> = second.iter().map(|machine| count(&after, *machine)).collect();
            prop_assert_eq!(shares.iter().sum::<usize>(), 64);
            prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
            let mut had: Vec<usize> = second.iter().map(|machine| count(&before, *machine)).collect();
            had.sort_unstable_by(|a, b| b.cmp(a));
            let (share, more) = (64 / second.len(), 64 % second.len());
            let kept: usize =
                had.iter().enumerate().map(|(n, had)| (*had).min(share + usize::from(n < more))).sum();
            let moved = before.iter().zip(&after).filter(|(old, new)| old != new).count();
            prop_assert_eq!(moved, 64 - kept);
        }
    }
}
