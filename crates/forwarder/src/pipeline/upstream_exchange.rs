//! The state of all pending upstream requests that do not belong to split client requests. The
//! modules `proxied`, `cache` and `replicas` process the replies. The request IDs and timeouts are
//! in `kv_switch::GatherTable`.

use std::net::SocketAddr;

use kv_switch::{AnswerFrame, CopyId, ExchangeId};

use super::return_path::ReturnPath;

/// The purpose of an upstream request that does not belong to a split client request.
#[derive(Debug)]
pub(super) enum UpstreamExchange {
    /// A proxied client request.
    Passing(Passing),
    /// A fetch of a value for the cache, with the index of the fetch in the cache.
    Fetch(u32),
    /// A write to a single replica of a key.
    Copy(CopyId),
}

/// A proxied request that is waiting for its reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passing {
    pub(super) way: ReturnPath,
    pub(super) server: SocketAddr,
    /// The request ID that the client used.
    pub(super) id: u16,
    /// `true` if the backend sends exactly one reply to the request.
    pub(super) has_one_answer: bool,
    pub(super) is_answered: bool,
    /// A bit mask of the reply datagrams that have arrived. If a reply has more than 64 datagrams,
    /// the upstream request stays pending until its timeout.
    pub(super) come: u64,
    /// The number of the service, which selects the service's share of the table.
    pub(super) service: u32,
    /// The write to record before the reply is forwarded.
    pub(super) write: Option<StrictWrite>,
}

/// A write to a service with a strict cache. Once the reply is forwarded, older cached values of
/// the key must not be used.
#[derive(Clone, Copy, Debug)]
pub(super) struct StrictWrite {
    /// The hash of the memcached key for the cache.
    pub(super) hash: u64,
    /// The fingerprint of the cache rules that were used to compute the hash.
    pub(super) fingerprint: u64,
}

impl Passing {
    pub(super) const fn is_unanswered(&self) -> bool {
        !self.is_answered
    }

    /// Records a datagram of the reply. Returns `true` if all datagrams of the reply have arrived.
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

/// A fetch of one value from a backend.
#[derive(Clone, Copy)]
pub(super) struct Fetch {
    /// The ID of the upstream request.
    pub(super) id: ExchangeId,
    /// The index of the fetch in the cache.
    pub(super) number: u32,
}

/// The part of a split client request that a reply belongs to.
#[derive(Clone, Copy)]
pub(super) struct PartOf {
    /// The ID of the upstream request.
    pub(super) id: ExchangeId,
    /// The index of the client request.
    pub(super) number: u32,
}
