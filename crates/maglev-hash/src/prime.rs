//! Is a table size prime?
//!
//! In: a size up to [`MAX_SIZE`](crate::MAX_SIZE). Only a prime is coprime to every skip, so only then does each
//! backend's walk visit every slot.

/// Trial division: at most 2,048 steps for the largest size.
pub(crate) fn is_prime(size: u32) -> bool {
    if size < 4 {
        return size >= 2;
    }
    if size.is_multiple_of(2) {
        return false;
    }
    (3..)
        .step_by(2)
        .take_while(|divisor| divisor * divisor <= size)
        .all(|divisor| !size.is_multiple_of(divisor))
}
