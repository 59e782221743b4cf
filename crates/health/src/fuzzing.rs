//! Entry points for fuzzing the DNS parser. The fuzz targets in `tests/fuzz` cannot use private
//! functions.
//!
//! This module is compiled only with the feature `fuzzing`.

use config::DnsRecord;

use crate::dns::{judge, query};
use crate::failure::Failure;

/// Returns the query that a check sends for an A record of `www.example.org`. The first two bytes
/// are the query ID.
///
/// # Panics
/// This function does not panic, because the name is valid.
#[must_use]
pub fn dns_query() -> Vec<u8> {
    query([0x12, 0x34], "www.example.org", DnsRecord::A).expect("the name is valid")
}

/// Evaluates a response to [`dns_query`]. Returns `None` if the bytes do not match the query. A
/// check would then continue to wait.
#[must_use]
pub fn dns(answer: &[u8]) -> Option<Result<(), Failure>> {
    judge(answer, &dns_query())
}
