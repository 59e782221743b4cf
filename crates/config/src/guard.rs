//! The keys `allow`, `deny` and `limits` of a VIP, which determine the allowed clients and the
//! number of new flows that they may open.
//!
//! This module reads the keys of `[vip.NAME]`, and the module `lists` reads the files that they
//! refer to. The crate `forwarder` enforces the lists and limits.
//!
//! Invariant: an allow list is never empty. An empty list would reject all clients, and is usually
//! the result of a partially written file.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use config_text::{Expected, Node, Section};
use serde::{Serialize, Serializer};

use forwarder::Prefix;

use super::address::AddressNode;
use super::canonical::{self, Sealed};
use super::lists::{Block, Lists};

/// The access lists and rate limits of a VIP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Guard {
    /// The source prefixes that may use the VIP. Default: all sources.
    pub allow: Option<SourceList>,
    /// The source prefixes that must not use the VIP, even if [`Guard::allow`] contains them.
    /// Default: none.
    pub deny: Option<SourceList>,
    /// The rate limits. Default: none.
    #[serde(serialize_with = "canonical::words")]
    pub limits: Limits,
}

impl Guard {
    /// Reads the keys of a VIP section.
    pub(super) fn read(section: &mut Section<'_>, lists: &Lists<'_>) -> Self {
        let allow = SourceList::read(section, ["allow", "allow_files"], lists);
        let deny = SourceList::read(section, ["deny", "deny_files"], lists);
        let limits = section.or("limits", Limits::default(), |node| Limits::read(&node));
        if let Some((list, node)) = &allow
            && list.is_empty()
        {
            node.refuse((format!("{} has no prefix", node.label()), EMPTY));
        }
        let list = |read: Option<(SourceList, Node<'_>)>| read.map(|(list, _)| list);
        Self { allow: list(allow), deny: list(deny), limits }
    }
}

/// The source prefixes that are listed in the configuration or in prefix list files.
#[derive(Clone, Debug, Serialize)]
pub struct SourceList {
    #[serde(serialize_with = "digests")]
    parts: Vec<Arc<Block>>,
}

impl SourceList {
    /// Returns all prefixes, sorted within each file. Prefixes that occur in two files are returned
    /// twice.
    pub fn prefixes(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        let all = self.parts.iter().flat_map(|part| part.prefixes.iter());
        all.map(|prefix| (prefix.address(), prefix.length()))
    }

    /// Returns the number of prefixes.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.prefixes.len()).sum()
    }

    /// Returns `true` if the list has no prefixes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the SHA-256 of the prefixes in the configuration and of each file. Together, these
    /// digests identify the content of the list.
    pub fn digests(&self) -> Vec<[u8; 32]> {
        self.parts.iter().map(|part| part.digest).collect()
    }

    /// Reads one list, and returns it with the node of its first key. Returns `None` if the section
    /// has neither of the two keys, or if a file could not be read.
    fn read<'a>(
        section: &mut Section<'a>,
        [inline, files]: [&'static str; 2],
        lists: &Lists<'_>,
    ) -> Option<(Self, Node<'a>)> {
        let (inline, files) = (section.optional(inline), section.optional(files));
        let mut parts: Vec<Option<Arc<Block>>> = inline.iter().map(read_inline).collect();
        match files.as_ref().map(|node| node.items(FILES)) {
            Some(Some(names)) => parts.extend(names.iter().map(|node| lists.file(node))),
            Some(None) => parts.push(None),
            None => {}
        }
        let first = inline.or(files)?;
        // If a file could not be read, this was already reported, and the list is not checked
        // further.
        let parts = parts.into_iter().collect::<Option<_>>()?;
        Some((Self { parts }, first))
    }
}

/// Serializes the digests. The result does not depend on the order of the files.
fn digests<S: Serializer>(parts: &[Arc<Block>], to: S) -> Result<S::Ok, S::Error> {
    let digests: BTreeSet<&[u8; 32]> = parts.iter().map(|part| &part.digest).collect();
    to.collect_seq(digests.into_iter().map(|digest| Sealed::of(digest)))
}

impl PartialEq for SourceList {
    fn eq(&self, other: &Self) -> bool {
        self.parts.iter().map(|part| &part.digest).eq(other.parts.iter().map(|part| &part.digest))
    }
}

impl Eq for SourceList {}

fn read_inline(node: &Node<'_>) -> Option<Arc<Block>> {
    let read: Vec<Option<Prefix>> = node.items(INLINE)?.iter().map(|node| node.source(SOURCE)).collect();
    Some(Arc::new(Block::new(read.into_iter().collect::<Option<_>>()?)))
}

/// The limits on new flows to a VIP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of new flows per second from all sources together: 1 to 10,000,000.
    /// Default: no limit.
    pub new_flows_per_second: Option<NonZeroU32>,
    /// The limit per source prefix. Default: no limit.
    pub per_source: Option<PerSource>,
}

impl Limits {
    fn read(node: &Node<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let rate = section.optional("new_flows_per_second");
        let each = section.optional("per_source");
        if rate.is_none() && each.is_none() {
            let message = "\"limits\" needs \"new_flows_per_second\", \"per_source\", or both";
            node.refuse((message, "add one of these keys, or remove limits"));
        }
        let new_flows_per_second = rate.and_then(|node| node.number(1..=MAX_RATE)).and_then(NonZeroU32::new);
        let per_source = each.and_then(|node| PerSource::read(&node));
        section.finish();
        Some(Self { new_flows_per_second, per_source })
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.new_flows_per_second {
            Some(rate) => write!(f, "{rate} new flows/s")?,
            None if self.per_source.is_none() => return f.write_str("none"),
            None => {}
        }
        let Some(each) = self.per_source else { return Ok(()) };
        let also = if self.new_flows_per_second.is_some() { ", " } else { "" };
        let PerSource { new_flows_per_second, v4_prefix, v6_prefix } = each;
        write!(f, "{also}{new_flows_per_second} new flows/s for each IPv4 /{v4_prefix} and IPv6 /{v6_prefix}")
    }
}

/// A limit for the new flows from each source prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerSource {
    /// The maximum number of new flows per second from one prefix: 1 to 10,000,000.
    pub new_flows_per_second: NonZeroU32,
    /// The length of an IPv4 source prefix in bits: 8 to 32. Default: 32.
    pub v4_prefix: u8,
    /// The length of an IPv6 source prefix in bits: 16 to 128. Default: 64.
    pub v6_prefix: u8,
}

impl PerSource {
    fn read(node: &Node<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let rate = section.required("new_flows_per_second", "a number from 1 to 10000000");
        let rate = rate.and_then(|node| node.number(1..=MAX_RATE)).and_then(NonZeroU32::new);
        let v4_prefix = section.or("v4_prefix", 32, |node| node.number(8..=32));
        let v6_prefix = section.or("v6_prefix", 64, |node| node.number(16..=128));
        section.finish();
        Some(Self { new_flows_per_second: rate?, v4_prefix, v6_prefix })
    }
}

/// The maximum rate limit. Rate limits up to this value are accurate to 0.1 %, and no machine
/// handles more new flows per second than this.
const MAX_RATE: u32 = 10_000_000;
const INLINE: Expected =
    Expected::new("a list of prefixes or addresses").example("[\"198.51.100.0/24\", \"2001:db8::1\"]");
const SOURCE: Expected = Expected::new("an IP prefix or address").example("\"198.51.100.0/24\"");
const FILES: Expected = Expected::new("a list of files").example("[\"lists/office.txt\"]");
const EMPTY: &str = "add a prefix; without one, the VIP would serve no client";
