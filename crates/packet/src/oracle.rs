//! Slow reference implementations for tests, which share no code with the functions under test.

/// Computes the checksum defined in RFC 1071 word by word and adds each carry immediately.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) * 256 + pair.get(1).copied().map_or(0, u32::from);
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    u16::try_from(0xffff - sum).unwrap()
}
