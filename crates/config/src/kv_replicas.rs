//! The table `kv.replicas` of a pool, which makes the pool store each key on several backends.
//!
//! The module `replicas` checks that this setting can be combined with other keys. The crate
//! `forwarder` chooses the backends, and the crate `kv-switch` combines their replies.

use config_text::Node;
use serde::Serialize;

/// The number of replicas for each key, and the number of replicas that must acknowledge a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvReplicas {
    /// The number of backends that store each key: 2 to 4. Default: 2.
    pub count: u8,
    /// The replicas that must acknowledge a write before the client gets a reply. Default:
    /// [`KvAck::All`].
    pub ack: KvAck,
}

/// The replicas that must acknowledge a write before the client gets a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvAck {
    /// All replicas of the key.
    All,
    /// More than half of the replicas.
    Majority,
    /// The replica that replies first.
    First,
}

impl KvReplicas {
    /// Reads the value of `replicas`, which is a table or `false`.
    pub(super) fn read(node: Option<Node<'_>>, is_memcached: bool) -> Option<Self> {
        let node = node?;
        let mut section = node.section_or_false()?;
        let count = section.or("count", 2, |node| node.number(2..=MOST));
        let words = [("all", KvAck::All), ("majority", KvAck::Majority), ("first", KvAck::First)];
        let ack = section.or("ack", KvAck::All, |node| node.choice(&words));
        section.finish();
        if !is_memcached {
            node.needs("protocol = \"memcached\"");
        }
        Some(Self { count, ack })
    }
}

const MOST: u8 = 4;
