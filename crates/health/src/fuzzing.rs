//! Entry points for fuzzing the parsers of DNS responses and check program messages. The fuzz
//! targets in `tests/fuzz` cannot use private functions.
//!
//! This module is compiled only with the feature `fuzzing`.

use config::DnsRecord;

use crate::dns::{judge, query};
use crate::exec::wire::{MOST_REPLY_BYTES, Reply, Request};
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
/// check ignores such bytes and continues to wait for a response.
#[must_use]
pub fn dns(answer: &[u8]) -> Option<Result<(), Failure>> {
    judge(answer, &dns_query())
}

/// Parses `bytes` as a request to run a check program, and as a reply to such a request. Converts
/// each parsed message to text again, and checks the text.
///
/// # Panics
/// Panics if the text of a request is parsed as a different request, or if the text of a reply is
/// too long or has several lines.
pub fn check_programs(bytes: &[u8]) {
    if let Ok(request) = Request::parse(bytes) {
        let text = request.to_text();
        let lines = text.strip_suffix("\n\n").expect("a request ends with an empty line");
        assert_eq!(Request::parse(lines.as_bytes()), Ok(request));
    }
    if let Some(reply) = Reply::parse(bytes) {
        let text = reply.to_text();
        assert!(text.len() <= MOST_REPLY_BYTES && text.lines().count() == 1, "{text:?}");
    }
}

/// Returns valid requests and replies of check programs, from which the fuzzer derives its inputs.
#[must_use]
pub fn check_program_messages() -> Vec<Vec<u8>> {
    let request = "sluicegate-check 1\nprogram check_mysql\nlimit 4900\naddress 192.0.2.1\nbackend db1\npools db web\n\
                   port 3306\nargument --lag\nargument 30";
    [request, "started", "passed", "failed exit status 2: lag 90 s", "unable no such file"]
        .map(|text| text.as_bytes().to_vec())
        .into()
}
