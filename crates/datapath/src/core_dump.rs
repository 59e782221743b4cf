//! Memory that holds packets of clients stays out of core dumps.
//!
//! In: an allocation. Out: the advice to the kernel about the whole pages in it. Not here: whether a core is written at all.
//! Source: madvise(2), MADV_DONTDUMP.

use std::ptr::NonNull;

use rustix::mm::{Advice, madvise};

/// Clients' packets are in no core dump: the whole pages among `len` bytes from `base` on.
pub(crate) fn keep_out_of_cores(base: NonNull<u8>, len: usize) {
    let page = rustix::param::page_size();
    let before = base.align_offset(page);
    let Some(whole) = len.checked_sub(before).map(|rest| rest / page * page).filter(|whole| *whole > 0)
    else {
        return;
    };
    // SAFETY: `before` is within the `len` bytes of one allocation.
    let first = unsafe { base.add(before) };
    // SAFETY: `first` starts `whole` bytes of whole pages of that allocation, and the advice changes none of them.
    let advised = unsafe { madvise(first.as_ptr().cast(), whole, Advice::LinuxDontDump) };
    if let Err(error) = advised {
        tracing::warn!(%error, "packet memory would be in a core dump");
    }
}
