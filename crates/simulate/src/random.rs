//! Numbers that follow from the seed alone, each by its place: no state, so no order of asking changes them.
//!
//! In: a seed, a stream, a place. Out: 64 bits, or a fraction. Not here: what they stand for.
//! Source: `mix` is the finalizer of SplitMix64 (Steele, Lea, Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014).

/// What a number is for: streams are independent of each other.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(crate) enum Stream {
    /// The hash by which routers choose the next hop of a flow.
    Router = 1,
    /// What a machine's hash of a flow is made of.
    Flow = 2,
    /// How long a flow lives.
    Lifetime = 3,
    /// The same, where it takes two numbers.
    Second = 4,
    /// How much of it is left at the start.
    Residual = 5,
    /// The time between two arrivals.
    Arrival = 6,
    /// Hash keys.
    Key = 7,
}

/// The number at a place of a stream.
#[inline]
pub(crate) fn draw(seed: u64, stream: Stream, place: u64) -> u64 {
    let start = mix(seed.wrapping_add((stream as u64).wrapping_mul(GOLDEN)));
    mix(start.wrapping_add(place.wrapping_mul(GOLDEN)))
}

/// A bijection that scatters.
#[inline]
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A fraction above 0 and below 1.
#[inline]
pub(crate) fn unit(bits: u64) -> f64 {
    ((bits >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

/// 2^64 divided by the golden ratio, odd.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    /// The published first outputs of SplitMix64 from state 1234567 are `mix(1234567 + n * GOLDEN)`.
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
