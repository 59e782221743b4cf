//! Computes random numbers from the seed, a stream and an index. The generator has no state, so the
//! result does not depend on the order of calls.
//!
//! Reference: `mix` is the finalizer of SplitMix64 (Steele, Lea, Flood, *Fast splittable
//! pseudorandom number generators*, OOPSLA 2014).

/// The purpose of a random number. Each purpose has an independent stream of numbers.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(crate) enum Stream {
    /// The hash that a router uses to select the next hop of a flow.
    Router = 1,
    /// The value from which machines compute the hash of a flow.
    Flow = 2,
    /// The lifetime of a flow.
    Lifetime = 3,
    /// The second random number for a log-normal lifetime.
    Second = 4,
    /// For a flow that is live at the start, the remaining fraction of its lifetime.
    Residual = 5,
    /// The time between two new flows.
    Arrival = 6,
    /// The hash keys.
    Key = 7,
}

/// Returns the random number with index `place` in a stream.
#[inline]
pub(crate) fn draw(seed: u64, stream: Stream, place: u64) -> u64 {
    let start = mix(seed.wrapping_add((stream as u64).wrapping_mul(GOLDEN)));
    mix(start.wrapping_add(place.wrapping_mul(GOLDEN)))
}

/// Scrambles 64 bits with a bijective function.
#[inline]
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Converts random bits to a fraction above 0 and below 1.
#[inline]
pub(crate) fn unit(bits: u64) -> f64 {
    ((bits >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

/// 2^64 divided by the golden ratio, rounded to an odd number.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    /// For the initial state 1234567, the published outputs of SplitMix64 are `mix(1234567 + n *
    /// GOLDEN)`.
    #[test]
    fn the_mix_is_that_of_splitmix64() {
        let outputs = (1..=3).map(|n: u64| mix(1_234_567u64.wrapping_add(n.wrapping_mul(GOLDEN))));
        assert!(outputs.eq([
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423
        ]));
    }

    #[test]
    fn fractions_lie_between_0_and_1() {
        assert!(unit(0) > 0.0 && unit(u64::MAX) < 1.0);
    }
}
