//! What is known of a request to a backend that is no part of a client's request for several.
//!
//! Not here: what is done with an answer (`through`, `cache`, `replicas`), ids and times (`kv_switch::GatherTable`).

use std::net::SocketAddr;

use kv_switch::{AnswerFrame, CopyId, ExchangeId};

use super::way_back::WayBack;

/// What an exchange is for that is no part of a request for several backends.
#[derive(Debug)]
pub(super) enum OwnExchange {
    /// A request that passes both ways.
    Passing(Passing),
    /// A value for the cache, by the number of its fetch there.
    Fetch(u32),
    /// A write for one of several backends.
    Copy(CopyId),
}

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passing {
    pub(super) way: WayBack,
    pub(super) server: SocketAddr,
    /// The client's own id.
    pub(super) id: u16,
    /// Whether it has one answer, after which nothing follows.
    pub(super) has_one_answer: bool,
    pub(super) is_answered: bool,
    /// Which of the answer's first 64 datagrams have come; more of them are waited for.
    pub(super) come: u64,
    /// What is noted before its answer is sent on.
    pub(super) write: Option<StrictWrite>,
}

/// A write that no copy may be older than once its answer has passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct StrictWrite {
    /// Of its key, for the cache.
    pub(super) hash: u64,
    /// Of the cache's rules by which that is its hash.
    pub(super) fingerprint: u64,
}

impl Passing {
    pub(super) const fn is_unanswered(&self) -> bool {
        !self.is_answered
    }

    /// Whether this was the last datagram that it waits for.
    pub(super) fn is_over_by(&mut self, frame: AnswerFrame) -> bool {
        self.is_answered = true;
        if frame.number < 64 {
            self.come |= 1 << frame.number;
        }
        let all = match frame.total {
            0 => 0,
            total @ 1..=64 => u64::MAX >> (64 - total),
            _ => return false,
        };
        self.has_one_answer && self.come & all == all
    }
}

/// A value that a backend is asked for.
#[derive(Clone, Copy)]
pub(super) struct Fetch {
    /// What it is asked under.
    pub(super) id: ExchangeId,
    /// The cache's number of it.
    pub(super) number: u32,
}

/// An answer to a part of a request.
#[derive(Clone, Copy)]
pub(super) struct PartOf {
    /// What it came under.
    pub(super) id: ExchangeId,
    /// The request's.
    pub(super) number: u32,
}
