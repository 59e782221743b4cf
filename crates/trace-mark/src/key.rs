//! The keys of the packet tracer. They are derived from the cluster's hash key, so operators need
//! to distribute only one secret.
//!
//! Invariant: both keys differ from the hash key and from each other, because each is derived with
//! a different label. An authentication code that was computed for a mark is therefore not valid
//! for a report.
//!
//! The algorithm is SipHash (Aumasson and Bernstein, 2012) with the 128-bit output of its reference
//! code.

use std::fmt;

use classifier::HashKey;
use siphasher::sip128::SipHasher24;

/// The keys that sign the marks and reports of a cluster. The `Debug` output does not contain the
/// keys.
#[derive(Clone, Copy)]
pub struct TraceKey {
    marks: SipHasher24,
    reports: SipHasher24,
}

impl TraceKey {
    /// Derives both keys from the cluster's hash key.
    #[must_use]
    pub fn derive(cluster: &HashKey) -> Self {
        let key = |label: &[u8]| SipHasher24::new_with_key(&cluster.derive(label));
        Self { marks: key(b"sluicegate trace mark 1"), reports: key(b"sluicegate trace report 1") }
    }

    /// Returns the message authentication code (MAC) for the text of a report.
    #[must_use]
    pub fn sign_report(&self, text: &[u8]) -> [u8; MAC_BYTES] {
        self.reports.hash(text).as_bytes()
    }

    /// Returns `true` if `mac` is the valid message authentication code of a report. The comparison
    /// takes constant time.
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

/// Compares two authentication codes in constant time.
pub(crate) fn is_equal(one: &[u8; MAC_BYTES], other: &[u8; MAC_BYTES]) -> bool {
    one.iter().zip(other).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

pub(crate) const MAC_BYTES: usize = 16;
