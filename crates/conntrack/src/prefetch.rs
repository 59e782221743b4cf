//! The prefetch hint: the only unsafe code of this crate, for others too that may have none.
//!
//! Not here: which lines are worth it (`table`, `room`).

/// Asks the CPU to bring the cache line in which `what` begins into its nearest cache; does nothing where there is no such hint.
#[inline]
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the prefetch intrinsic takes a raw pointer")
)]
pub fn prefetch<T>(what: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = core::ptr::from_ref(what).cast::<i8>();
        // SAFETY: a prefetch neither reads nor writes what the program can see; `address` comes from a reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = what;
}
