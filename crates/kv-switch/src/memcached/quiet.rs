//! Which requests that change something have a reply.
//!
//! In: such a request. Out: whether a server that carries it out says so: not with `noreply` or `q`.
//! Not here: errors, which quiet commands have too. A reply that may come counts as one: `ma` with `q` has one for an item that it makes,
//! `mg` for one that it finds, and to quiet binary commands there is an empty datagram over UDP.
//! Source: memcached 1.6 `doc/protocol.txt`, `proto_text.c`, `proto_bin.c`; 1.6.18 was asked (`tests/kv/strict.rs` of the repository).

use crate::Request;

use super::replicas::behind_the_key;
use super::{Verb, binary, frame};

pub(super) fn is_acknowledged(request: &Request<'_>) -> bool {
    let &Request { payload, ask } = request;
    if payload.get(frame::LENGTH) == Some(&binary::REQUEST) {
        return true;
    }
    let Some(mut words) = behind_the_key(payload, ask) else { return true };
    let is_one = |verbs: &[Verb]| verbs.iter().any(|verb| verb.number() == ask.verb);
    if is_one(&WITH_NOREPLY) {
        words.last().is_none_or(|word| word.text != b"noreply")
    } else if is_one(&[Verb::MetaSet, Verb::MetaDelete]) {
        !words.any(|word| word.text == b"q")
    } else {
        true
    }
}

/// In text, where no key can stand behind the first.
const WITH_NOREPLY: [Verb; 10] = [
    Verb::Set,
    Verb::Add,
    Verb::Replace,
    Verb::Append,
    Verb::Prepend,
    Verb::Cas,
    Verb::Delete,
    Verb::Incr,
    Verb::Decr,
    Verb::Touch,
];
