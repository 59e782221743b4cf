//! The primality test for table sizes up to [`MAX_SIZE`](crate::MAX_SIZE). Every skip must be
//! coprime to the size, so that the walk of each backend visits every slot.

/// Returns `true` if `size` is a prime, using trial division with at most 2,048 steps.
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
