//! The prefetch hint, which is the only unsafe code in this crate. The function is public, so that
//! crates that forbid unsafe code can use it.

/// Prefetches the cache line that contains the first byte of `what` into all cache levels. Has no
/// effect on CPUs other than x86-64.
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
        // SAFETY: a prefetch does not read or write memory that the program can observe, and
        // `address` comes from a reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = what;
}
