//! The tracer's keys, derived from the cluster's hash key: no second secret has to be spread.
//!
//! Invariant: neither key is the hash key itself, and a mark's MAC is no report's: each has a label of its own.
//! Source: Aumasson, Bernstein, *SipHash*, 2012; the reference code's 128-bit output.

use std::fmt;

use classifier::HashKey;
use siphasher::sip128::SipHasher24;

/// Signs marks and reports of one cluster. Never printed.
#[derive(Clone, Copy)]
pub struct TraceKey {
    marks: SipHasher24,
    reports: SipHasher24,
}

impl TraceKey {
    /// The keys of the cluster whose hash key is `cluster`.
    #[must_use]
    pub fn derive(cluster: &HashKey) -> Self {
        let key = |label: &[u8]| SipHasher24::new_with_key(&cluster.derive(label));
        Self { marks: key(b"sluicegate trace mark 1"), reports: key(b"sluicegate trace report 1") }
    }

    /// The MAC of a report's text.
    #[must_use]
    pub fn sign_report(&self, text: &[u8]) -> [u8; MAC_BYTES] {
        self.reports.hash(text).as_bytes()
    }

    /// Whether a report's MAC is right, in a time that does not depend on it.
    #[must_use]
    pub fn is_report(&self, text: &[u8], mac: &[u8; MAC_BYTES]) -> bool {
        is_equal(&self.sign_report(text), mac)
    }

    pub(crate) fn sign_mark(&self, message: &[u8]) -> [u8; MAC_BYTES] {
        self.marks.hash(message).as_bytes()
    }
}

impl fmt::Debug for TraceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TraceKey(secret)")
    }
}

/// Compares all bytes, wherever the first difference is.
pub(crate) fn is_equal(one: &[u8; MAC_BYTES], other: &[u8; MAC_BYTES]) -> bool {
    one.iter().zip(other).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

pub(crate) const MAC_BYTES: usize = 16;
