//! `replicas` of a pool's `kv`: several backends have each key.
//!
//! In: the table. Out: [`KvReplicas`].
//! Not here: what may not stand beside it (`replicas`), which backends have a key (`forwarder`), what servers have to say (`kv-switch`).

use config_text::Node;
use serde::Serialize;

/// How many backends have each key, and what a client's write waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvReplicas {
    /// How many: 2 to 4. Default 2.
    pub count: u8,
    /// How many of them carry a write out before its client has the reply that it is done. Default [`KvAck::All`].
    pub ack: KvAck,
}

/// How many backends carry a write out before its client has the reply that it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvAck {
    /// All that a key has.
    All,
    /// More than half of them.
    Majority,
    /// One.
    First,
}

impl KvReplicas {
    /// A table, or `false`.
    pub(super) fn read(node: Option<Node<'_>>, is_memcached: bool) -> Option<Self> {
        let node = node?;
        let mut section = node.section_or_false()?;
        let count = section.or("count", 2, |node| node.number(2..=MOST));
        let words = [("all", KvAck::All), ("majority", KvAck::Majority), ("first", KvAck::First)];
        let ack = section.or("ack", KvAck::All, |node| node.choice(&words));
        section.finish();
        if !is_memcached {
            node.refuse("nothing here: it is for protocol = \"memcached\"");
        }
        Some(Self { count, ack })
    }
}

const MOST: u8 = 4;
