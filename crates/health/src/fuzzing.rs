//! The reader of DNS answers, for the fuzzer (`tests/fuzz`), which knows no private function.
//!
//! Not here: anything that the balancer runs. The feature `fuzzing` compiles it.

use config::DnsRecord;

use crate::dns::{judge, query};
use crate::failure::Failure;

/// The question of a check for an A record of `www.example.org`; its first two bytes are its number.
///
/// # Panics
/// Never: it is a domain name.
#[must_use]
pub fn dns_query() -> Vec<u8> {
    query([0x12, 0x34], "www.example.org", DnsRecord::A).expect("a domain name")
}

/// What these bytes are to a check that asked [`dns_query`]. `None`: no answer to it, the check goes on waiting.
#[must_use]
pub fn dns(answer: &[u8]) -> Option<Result<(), Failure>> {
    judge(answer, &dns_query())
}
