//! Detects writes that contain `noreply` or the flag `q`, to which the server sends no reply.
//!
//! This module treats a write as acknowledged if the server might send a success reply. Despite
//! `q`, `ma` replies if it creates an item, and `mg` replies if it finds an item. Over UDP, servers
//! answer quiet binary commands with an empty datagram. Quiet commands can also cause error
//! replies, but this module ignores them.
//!
//! References: memcached 1.6 `doc/protocol.txt`, `proto_text.c`, `proto_bin.c`. The behavior was
//! checked with memcached 1.6.18 (`tests/kv/strict.rs` of the repository).

use crate::{Effect, Request};

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

/// Returns `false` for commands with `noreply`, and for `ms` and `md` with `q` if their success
/// does not depend on the stored value. If the success depends on the stored value, `ms` and `md`
/// report a failure despite `q`.
pub(super) fn has_answer(request: &Request<'_>) -> bool {
    let is_one = |verbs: &[Verb]| verbs.iter().any(|verb| verb.number() == request.ask.verb);
    let may_fail = is_one(&[Verb::MetaSet, Verb::MetaDelete]) && request.ask.effect == Effect::Conditional;
    may_fail || is_acknowledged(request)
}

/// Text commands that allow `noreply` and cannot have a second key.
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
