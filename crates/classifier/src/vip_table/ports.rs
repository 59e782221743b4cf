//! The port intervals of one VIP, and the search for the interval of a port.
//!
//! The intervals are disjoint and sorted. The first interval of a VIP stores how many intervals
//! follow, so its index identifies all intervals of the VIP. A VIP with a single interval needs no
//! search.

use std::hint::select_unpredictable;

use super::Claim;

/// A port interval of one protocol. All its ports belong to the same service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    /// The protocol number in the upper 16 bits, and the first port in the lower 16 bits.
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) service: u32,
    /// The number of intervals that follow this interval and belong to the same VIP.
    more: u32,
}

impl Interval {
    /// An interval without ports.
    pub(super) const EMPTY: Self = Self { first: 1, last: 0, service: 0, more: 0 };

    /// Returns `true` if the VIP has no other interval. `self` must be the first interval of the
    /// VIP.
    #[inline]
    pub(super) const fn is_only(&self) -> bool {
        self.more == 0
    }

    /// Returns `true` if the interval contains all ports of the protocol.
    pub(super) fn has_all_of(&self, protocol: u8) -> bool {
        (self.first, self.last) == (number(protocol, 0), number(protocol, u16::MAX))
    }

    /// Returns the service if the interval contains the port.
    #[inline]
    pub(super) fn service_of(&self, protocol: u8, port: u16) -> Option<u32> {
        (self.first..=self.last).contains(&number(protocol, port)).then_some(self.service)
    }
}

/// Returns all intervals of a VIP. The slice must start with the first interval of this VIP.
#[inline]
pub(super) fn of_one(intervals: &[Interval]) -> &[Interval] {
    let more = intervals.first().map_or(0, |first| first.more as usize);
    intervals.get(..=more).unwrap_or_default()
}

/// The first intervals of a VIP, stored in the same cache line as its address. Few VIPs have
/// further intervals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nearby {
    /// The protocol and first port of each interval. The entry of an unused interval is a value
    /// that occurs in no packet.
    first: [u32; NEARBY],
    /// The number of further ports after the first port of each interval.
    span: [u32; NEARBY],
    service: [u32; NEARBY],
}

impl Nearby {
    /// A value in which all intervals are unused.
    pub(super) const NONE: Self = Self { first: [u32::MAX; NEARBY], span: [0; NEARBY], service: [0; NEARBY] };

    /// Copies the first intervals of a VIP. The slice must start with the first interval of this
    /// VIP.
    pub(super) fn of(intervals: &[Interval]) -> Self {
        let mut nearby = Self::NONE;
        for (place, interval) in of_one(intervals).iter().take(NEARBY).enumerate() {
            nearby.first[place] = interval.first;
            nearby.span[place] = interval.last - interval.first;
            nearby.service[place] = interval.service;
        }
        nearby
    }

    /// Returns the service of a port if an interval contains the port.
    #[inline(always)]
    pub(super) fn service_of(&self, protocol: u8, port: u16) -> Option<u32> {
        let number = number(protocol, port);
        // At most one of the disjoint intervals matches, so the loop can use conditional moves
        // instead of branches.
        let mut found = u32::MAX;
        for place in 0..NEARBY {
            let is_within = number.wrapping_sub(self.first[place]) <= self.span[place];
            found = select_unpredictable(is_within, self.service[place], found);
        }
        (found != u32::MAX).then_some(found)
    }
}

/// The number of intervals that fit into the cache line of an address.
pub(super) const NEARBY: usize = 3;

/// Returns the service at a port of a VIP. The slice must start with the first interval of this
/// VIP.
#[inline]
pub(super) fn search(intervals: &[Interval], protocol: u8, port: u16) -> Option<u32> {
    if let [only, ..] = intervals
        && only.is_only()
    {
        return only.service_of(protocol, port);
    }
    let intervals = of_one(intervals);
    let before = intervals.partition_point(|interval| interval.first <= number(protocol, port));
    intervals.get(before.checked_sub(1)?)?.service_of(protocol, port)
}

#[inline]
fn number(protocol: u8, port: u16) -> u32 {
    (u32::from(protocol) << 16) | u32::from(port)
}

/// Splits the port ranges of a VIP's services into disjoint intervals. Where claims overlap, the
/// claim with fewer ports takes precedence. Returns the two conflicting services if their claims
/// overlap and contain the same number of ports, unless a narrower claim covers the overlap.
pub(super) fn disjoint(claims: &[&Claim]) -> Result<Vec<Interval>, (u32, u32)> {
    let mut result: Vec<Interval> = Vec::new();
    let mut protocols: Vec<u8> = claims.iter().map(|claim| claim.protocol).collect();
    protocols.sort_unstable();
    protocols.dedup();
    for protocol in protocols {
        let claims: Vec<&Claim> = claims.iter().copied().filter(|claim| claim.protocol == protocol).collect();
        let mut edges: Vec<u32> = claims.iter().flat_map(|c| [first(c), last(c) + 1]).collect();
        edges.sort_unstable();
        edges.dedup();
        for pair in edges.windows(2) {
            let Some(service) = narrowest(&claims, pair[0])? else { continue };
            let base = u32::from(protocol) << 16;
            let interval = Interval { first: base | pair[0], last: base | (pair[1] - 1), service, more: 0 };
            match result.last_mut() {
                Some(Interval { last, service: same, .. })
                    if *same == service && *last + 1 == interval.first =>
                {
                    *last = interval.last;
                }
                _ => result.push(interval),
            }
        }
    }
    for (more, interval) in (0..).zip(result.iter_mut().rev()) {
        interval.more = more;
    }
    Ok(result)
}

/// Returns the service whose port range contains `port` and has the fewest ports. Returns the two
/// conflicting services as an error if their port ranges contain the same number of ports.
fn narrowest(claims: &[&Claim], port: u32) -> Result<Option<u32>, (u32, u32)> {
    let holds = |claim: &&Claim| (first(claim)..=last(claim)).contains(&port);
    let Some(best) = claims.iter().copied().filter(holds).min_by_key(|claim| width(claim)) else {
        return Ok(None);
    };
    let equal = claims.iter().copied().filter(holds).filter(|claim| width(claim) == width(best)).nth(1);
    equal.map_or(Ok(Some(best.service)), |other| Err((best.service, other.service)))
}

fn first(claim: &Claim) -> u32 {
    u32::from(*claim.ports.start())
}

fn last(claim: &Claim) -> u32 {
    u32::from(*claim.ports.end())
}

fn width(claim: &Claim) -> u32 {
    last(claim) - first(claim)
}
