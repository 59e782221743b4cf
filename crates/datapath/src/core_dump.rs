//! Uses madvise(2) with MADV_DONTDUMP to exclude memory with client packets from core dumps. The
//! kernel applies the advice to complete pages only.

use std::ptr::NonNull;

use rustix::mm::{Advice, madvise};

/// Excludes the complete pages within the `len` bytes at `base` from core dumps.
pub(crate) fn keep_out_of_cores(base: NonNull<u8>, len: usize) {
    let page = rustix::param::page_size();
    let before = base.align_offset(page);
    let Some(whole) = len.checked_sub(before).map(|rest| rest / page * page).filter(|whole| *whole > 0)
    else {
        return;
    };
    // SAFETY: `before` is within the `len` bytes of one allocation.
    let first = unsafe { base.add(before) };
    // SAFETY: `before` is less than `len`, so the result stays inside the allocation.
    let advised = unsafe { madvise(first.as_ptr().cast(), whole, Advice::LinuxDontDump) };
    if let Err(error) = advised {
        // log: The kernel refused to exclude packet memory from core dumps. Core dumps of this
        // process may contain packets of clients.
        tracing::warn!(%error, "packet memory not excluded from core dumps");
    }
}
