//! Runs work on several threads.
//!
//! The caller decides whether to use several threads. Most configurations are so small that reading
//! them takes less time than starting a thread.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread::{available_parallelism, scope};

/// Applies `work` to each item and returns the results in the order of the items. If `large` is
/// `true`, the work is spread over one thread per processor. Otherwise the work runs on the calling
/// thread.
pub fn map<T: Send, R: Send>(items: Vec<T>, large: bool, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    if !large {
        return items.into_iter().map(work).collect();
    }
    let each = items.len().div_ceil(processors()).max(1);
    let mut shares = Vec::new();
    let mut items = items.into_iter();
    while items.len() > 0 {
        shares.push(items.by_ref().take(each).collect::<Vec<_>>());
    }
    let work = &work;
    scope(|scope| {
        let start = |share: Vec<T>| scope.spawn(move || share.into_iter().map(work).collect::<Vec<_>>());
        let started: Vec<_> = shares.into_iter().map(start).collect();
        let ended =
            started.into_iter().flat_map(|share| share.join().unwrap_or_else(|panic| resume_unwind(panic)));
        ended.collect()
    })
}

/// Runs both functions and returns both results. If `large` is `true`, the functions run in
/// parallel.
pub fn both<A: Send, B>(large: bool, one: impl FnOnce() -> A + Send, other: impl FnOnce() -> B) -> (A, B) {
    if !large {
        return (one(), other());
    }
    scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        (one.join().unwrap_or_else(|panic| resume_unwind(panic)), other)
    })
}

/// Returns the number of threads that this machine can run in parallel.
pub fn processors() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        for (count, large) in [(0, true), (1, true), (2, true), (1_001, true), (1_001, false)] {
            let items: Vec<u32> = (0..count).collect();
            let expected: Vec<u64> = items.iter().map(|item| u64::from(*item) * 3).collect();
            assert_eq!(map(items, large, |item| u64::from(item) * 3), expected);
        }
    }

    #[test]
    fn both_are_done() {
        assert_eq!(both(true, || 1, || "2"), (1, "2"));
        assert_eq!(both(false, || 1, || "2"), (1, "2"));
    }
}
