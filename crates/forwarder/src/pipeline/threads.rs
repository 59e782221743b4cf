//! Selects packet threads by hash.

use crate::ThreadId;

/// Returns the thread that collects the fragments of a datagram, given the hash of its 3-tuple.
pub(super) fn gatherer(three_tuple: u64, threads: u16) -> ThreadId {
    share(three_tuple, threads)
}

/// Returns the thread for a flow, given the hash of its 5-tuple. The upper bits of the hash also
/// select the bucket in the connection table and the entry in the Maglev table. The hash is
/// rotated, because otherwise each thread would use only some of its buckets.
#[inline]
pub(super) fn thread_of_flow(five_tuple: u64, threads: u16) -> ThreadId {
    share(five_tuple.rotate_left(32), threads)
}

#[inline]
fn share(hash: u64, threads: u16) -> ThreadId {
    let scaled = (u128::from(hash) * u128::from(threads.max(1))) >> 64;
    ThreadId(u16::try_from(scaled).unwrap_or(0))
}
