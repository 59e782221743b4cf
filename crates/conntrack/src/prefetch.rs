//! The prefetch hint: the only unsafe code of this crate.
//!
//! Not here: which lines are worth it (`table`, `room`).

use crate::layout::Line;

/// Asks the CPU to bring `line` into its nearest cache; does nothing where there is no such hint.
#[inline]
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the prefetch intrinsic takes a raw pointer")
)]
pub(crate) fn prefetch(line: &Line) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = core::ptr::from_ref(line).cast::<i8>();
        // SAFETY: a prefetch neither reads nor writes what the program can see; `address` comes from a reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
