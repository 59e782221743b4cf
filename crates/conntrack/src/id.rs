//! The numbers of backend slots and VIPs. An entry stores each of them in 24 bits, so a number is
//! checked once, when its [`Id`] is created, and not for each flow.

/// The exclusive upper limit for slot numbers and VIP indexes. Both have 24 bits, and the value
/// with all bits set is reserved.
pub const ID_LIMIT: u32 = (1 << 24) - 1;

/// A slot number or a VIP index, which is below [`ID_LIMIT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Id(u32);

impl Id {
    /// Checks a number.
    ///
    /// # Errors
    /// Returns [`IdTooLarge`] if `number` is not below [`ID_LIMIT`].
    pub const fn new(number: u32) -> Result<Self, IdTooLarge> {
        if number < ID_LIMIT { Ok(Self(number)) } else { Err(IdTooLarge(number)) }
    }

    /// Returns the ID in the lower 24 bits of a number. Use this function only for numbers that
    /// were checked before: a number of 2^24 becomes 0.
    #[inline(always)]
    #[must_use]
    pub const fn truncated(number: u32) -> Self {
        Self(number & MASK_24)
    }

    /// Returns the number.
    #[inline(always)]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for Id {
    type Error = IdTooLarge;

    fn try_from(number: u32) -> Result<Self, IdTooLarge> {
        Self::new(number)
    }
}

impl From<Id> for u32 {
    fn from(id: Id) -> Self {
        id.0
    }
}

/// The error for a slot number or VIP index that is not below [`ID_LIMIT`]. The field contains the
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot or VIP number {0} is too large, use a number below {ID_LIMIT}")]
pub struct IdTooLarge(pub u32);

/// The VIP and backend slot of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The slot of the backend.
    pub slot: Id,
    /// The index of the VIP.
    pub vip: Id,
}

impl Target {
    /// Checks both numbers.
    ///
    /// # Errors
    /// Returns [`IdTooLarge`] if a number is not below [`ID_LIMIT`].
    pub const fn new(slot: u32, vip: u32) -> Result<Self, IdTooLarge> {
        match (Id::new(slot), Id::new(vip)) {
            (Ok(slot), Ok(vip)) => Ok(Self { slot, vip }),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }
}

pub(crate) const MASK_24: u32 = (1 << 24) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_more_than_24_bits_are_errors() {
        for number in [ID_LIMIT, 1 << 24, u32::MAX] {
            assert_eq!(Id::new(number), Err(IdTooLarge(number)));
            assert_eq!(Id::try_from(number), Err(IdTooLarge(number)));
            assert_eq!(Target::new(number, 1), Err(IdTooLarge(number)));
            assert_eq!(Target::new(1, number), Err(IdTooLarge(number)));
        }
        let error = IdTooLarge(1 << 24).to_string();
        assert_eq!(error, "slot or VIP number 16777216 is too large, use a number below 16777215");
        for number in [0, 1, ID_LIMIT - 1] {
            assert_eq!(Id::new(number).map(u32::from), Ok(number));
            assert_eq!(Id::truncated(number), Id(number));
        }
    }
}
