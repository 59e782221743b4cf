//! Which of the packet threads a hash names.

use crate::ThreadId;

/// The thread that gathers the pieces of a three-tuple.
pub(super) fn gatherer(three_tuple: u64, threads: u16) -> ThreadId {
    share(three_tuple, threads)
}

/// The thread of a flow, by its 5-tuple's hash. Not by the upper bits: these name the flow's bucket in the connection table, of
/// which a thread would use one part in `threads`, and its place in the Maglev table.
#[inline]
pub(super) fn thread_of_flow(five_tuple: u64, threads: u16) -> ThreadId {
    share(five_tuple.rotate_left(32), threads)
}

#[inline]
fn share(hash: u64, threads: u16) -> ThreadId {
    let scaled = (u128::from(hash) * u128::from(threads.max(1))) >> 64;
    ThreadId(u16::try_from(scaled).unwrap_or(0))
}
