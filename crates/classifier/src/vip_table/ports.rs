//! The ports of one VIP: who has which.
//!
//! In: claims. Out: disjoint intervals, sorted, and the search in them. The first of a VIP's intervals says how many more it
//! has, so that one number leads to them, and to the only one in one step.

use std::hint::select_unpredictable;

use super::Claim;

/// Ports of one protocol that a service has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    /// Protocol in the upper half, first port in the lower.
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) service: u32,
    /// How many of the same VIP follow.
    more: u32,
}

impl Interval {
    /// Of no port.
    pub(super) const EMPTY: Self = Self { first: 1, last: 0, service: 0, more: 0 };

    /// Whether the VIP has no other one, as its first one says.
    #[inline]
    pub(super) const fn is_only(&self) -> bool {
        self.more == 0
    }

    /// Whether every port of a protocol is within.
    pub(super) fn has_all_of(&self, protocol: u8) -> bool {
        (self.first, self.last) == (number(protocol, 0), number(protocol, u16::MAX))
    }

    /// The service, if the port is within.
    #[inline]
    pub(super) fn service_of(&self, protocol: u8, port: u16) -> Option<u32> {
        (self.first..=self.last).contains(&number(protocol, port)).then_some(self.service)
    }
}

/// The intervals of the VIP whose first one is the first here.
#[inline]
pub(super) fn of_one(intervals: &[Interval]) -> &[Interval] {
    let more = intervals.first().map_or(0, |first| first.more as usize);
    intervals.get(..=more).unwrap_or_default()
}

/// The first intervals of a VIP, in the cache line of its address: most have no more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nearby {
    /// First port of each, with its protocol; an interval that there is not has a number that no packet has.
    first: [u32; NEARBY],
    /// How many ports follow it.
    span: [u32; NEARBY],
    service: [u32; NEARBY],
}

impl Nearby {
    /// Of an address that is none.
    pub(super) const NONE: Self = Self { first: [u32::MAX; NEARBY], span: [0; NEARBY], service: [0; NEARBY] };

    /// Of the VIP whose intervals come first.
    pub(super) fn of(intervals: &[Interval]) -> Self {
        let mut nearby = Self::NONE;
        for (place, interval) in of_one(intervals).iter().take(NEARBY).enumerate() {
            nearby.first[place] = interval.first;
            nearby.span[place] = interval.last - interval.first;
            nearby.service[place] = interval.service;
        }
        nearby
    }

    /// The service that has a port, if it is one of these intervals'.
    #[inline(always)]
    pub(super) fn service_of(&self, protocol: u8, port: u16) -> Option<u32> {
        let number = number(protocol, port);
        // Disjoint, so that at most one holds it: selects in place of branches.
        let mut found = u32::MAX;
        for place in 0..NEARBY {
            let is_within = number.wrapping_sub(self.first[place]) <= self.span[place];
            found = select_unpredictable(is_within, self.service[place], found);
        }
        (found != u32::MAX).then_some(found)
    }
}

/// As many as fit into a cache line beside an address.
pub(super) const NEARBY: usize = 3;

/// The service that has a port of the VIP whose intervals come first.
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

/// Cuts one VIP's claims into disjoint intervals, at least one; the narrower claim wins.
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

/// The claim of fewest ports that holds `port`. Two of the fewest clash; equals that a narrower one hides do not.
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
