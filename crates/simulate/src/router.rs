//! The ECMP next hops of a router, which determine the machine that receives the packets of a flow.
//!
//! A router computes the hash of a flow modulo the number of next hops. The result is the index of
//! the flow's next hop. A resilient router has a constant number of next hops, which are called
//! buckets. Each machine gets an equal share of the buckets, rounded up or down, and a change moves
//! as few buckets as possible. The model does not include next-hop weights or the timers of
//! resilient groups.

use crate::scenario::Router;

/// Returns the next hops after a change to the set of machines. `before` contains the next hops
/// before the change, and `live` contains the available machines in ascending order.
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

/// Takes buckets from machines that have left and from machines that exceed their quota. The freed
/// buckets are assigned one at a time, each to the first machine that is below its quota.
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

/// Returns the number of buckets for each machine. If the buckets cannot be divided evenly,
/// machines that already have the most buckets get one additional bucket.
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
    fn resilient_router_moves_only_buckets_of_the_left_machine() {
        let before = next_hops(RESILIENT, &[], &[0, 1, 2, 3]);
        let after = next_hops(RESILIENT, &before, &[0, 1, 3]);
        for (old, new) in before.iter().zip(&after) {
            assert!(if *old == 2 { *new != 2 } else { new == old });
        }
        assert_eq!(next_hops(RESILIENT, &after, &[]), [0; 0]);
        assert_eq!(next_hops(Router::Plain, &before, &[0, 1, 3]), [0, 1, 3]);
    }

    proptest! {
        /// The minimum number of moved buckets is the sum of two numbers: the buckets of machines
        /// that left, and the buckets above an even share.
        #[test]
        fn resilient_router_moves_the_minimum_of_buckets(
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
