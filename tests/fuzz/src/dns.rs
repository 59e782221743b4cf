//! A fuzz target for DNS responses to a health check.

use health::Failure;
use health::fuzzing::{dns, dns_query};

/// Checks that the health check accepts a response if and only if a second parser finds an A record
/// after the question. Trailing bytes and the letter case of the question must not matter.
pub(crate) fn check(bytes: &[u8]) {
    let query = dns_query();
    // The health check rejects a response with a wrong query ID immediately, so this target
    // prepends the correct ID.
    let answer = [query.get(..2).unwrap_or_default(), bytes].concat();
    let verdict = dns(&answer).expect("the query ID matches");
    match verdict {
        Ok(()) => {
            assert_eq!(records(&answer, query.len()), Some(true));
            assert_eq!(dns(&[&answer[..], &[0xc0; 9]].concat()), Some(Ok(())));
            let mut other_case = answer;
            other_case[HEADER..query.len() - 4].iter_mut().for_each(|byte| {
                *byte ^= if byte.is_ascii_alphabetic() { 0x20 } else { 0 };
            });
            assert_eq!(dns(&other_case), Some(Ok(())));
        }
        Err(Failure::NoRecord) => {
            let is_cut = answer[2] & 2 != 0;
            assert!(is_cut || records(&answer, query.len()) == Some(false));
        }
        Err(failure) => assert!(!failure.to_string().contains('\n')),
    }
    let mut stranger = bytes.to_vec();
    stranger.splice(..0, [0x12, 0x35]);
    assert_eq!(dns(&stranger), None);
}

/// Returns `true` if an A record follows the question, which ends at `at`. Returns `None` if a
/// record is truncated.
fn records(answer: &[u8], mut at: usize) -> Option<bool> {
    let word = |at: usize| Some(usize::from(*answer.get(at)?) << 8 | usize::from(*answer.get(at + 1)?));
    let mut found = false;
    for _ in 0..word(6)? {
        // A name ends with the root label or with the first pointer.
        loop {
            match answer.get(at)? {
                0 => break at += 1,
                0xc0.. => break at += 2,
                label => at += 1 + usize::from(*label),
            }
        }
        found |= (word(at)?, word(at + 2)?, word(at + 8)?) == (1, 1, 4) && at + 14 <= answer.len();
        // If the response is marked as truncated, an A record is accepted even if later records are
        // incomplete.
        if found && answer[2] & 2 != 0 {
            return Some(true);
        }
        at += 10 + word(at + 8)?;
    }
    Some(found)
}

/// Returns seed responses without the query ID: one each with an address, an alias and its address,
/// no address, a refusal, and a truncated message.
pub(crate) fn answers() -> Vec<Vec<u8>> {
    let address = [&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1][..]].concat();
    let alias = [&[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 6, 3][..], b"web", &[0xc0, 16]].concat();
    let own_name = [&[1, b'x', 0xc0, 12, 0, 28, 0, 1, 0, 0, 0, 60, 0, 16][..], &[0x20; 16]].concat();
    let answer = |flags: [u8; 2], records: &[&[u8]]| {
        let mut answer = dns_query().split_off(2);
        answer[..2].copy_from_slice(&flags);
        answer[5] = u8::try_from(records.len()).expect("a few");
        records.iter().for_each(|record| answer.extend_from_slice(record));
        answer
    };
    vec![
        answer([0x81, 0x80], &[&address]),
        answer([0x81, 0x80], &[&alias, &own_name, &address]),
        answer([0x81, 0x80], &[&own_name]),
        answer([0x81, 0x83], &[]),
        answer([0x83, 0x80], &[&address, &alias[..8]]),
        answer([0x01, 0x00], &[]),
    ]
}

const HEADER: usize = 12;
