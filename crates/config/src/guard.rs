//! `allow`, `deny` and `limits` of a VIP: who may use it, and how fast.
//!
//! In: the keys of `[vip.NAME]`, and the files that they name (`lists`). Out: a [`Guard`], or none when the VIP is open.
//! Not here: look-up and rates (`forwarder::Guard`).
//! Invariant: an allow list holds something. An empty one would refuse everyone, and comes of a file that was not written whole.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use config_text::{Node, Section};
use serde::{Serialize, Serializer};

use forwarder::Prefix;

use super::address::AddressNode;
use super::canonical::{self, Sealed};
use super::lists::{Block, Lists};

/// Who may use a VIP, and how fast.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Guard {
    /// The only sources that are served. Default: all are.
    pub allow: Option<SourceList>,
    /// Sources that are not served; goes before [`Guard::allow`]. Default: none.
    pub deny: Option<SourceList>,
    /// Default: none.
    #[serde(serialize_with = "canonical::words")]
    pub limits: Limits,
}

impl Guard {
    /// Reads the keys out of a VIP's section.
    pub(super) fn read(section: &mut Section<'_>, lists: &Lists<'_>) -> Self {
        let allow = SourceList::read(section, ["allow", "allow_files"], lists);
        let deny = SourceList::read(section, ["deny", "deny_files"], lists);
        let limits = section.or("limits", Limits::default(), |node| Limits::read(&node));
        if let Some((list, node)) = &allow
            && list.is_empty()
        {
            node.report.error(&node.place, "an allow list without a prefix", EMPTY);
        }
        let list = |read: Option<(SourceList, Node<'_>)>| read.map(|(list, _)| list);
        Self { allow: list(allow), deny: list(deny), limits }
    }
}

/// Prefixes of sources: those in the file, and those of files beside it.
#[derive(Clone, Debug, Serialize)]
pub struct SourceList {
    #[serde(serialize_with = "digests")]
    parts: Vec<Arc<Block>>,
}

impl SourceList {
    /// All prefixes, those of each file sorted; one that stands in two files comes twice.
    pub fn prefixes(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        let all = self.parts.iter().flat_map(|part| part.prefixes.iter());
        all.map(|prefix| (prefix.address(), prefix.length()))
    }

    /// How many [`SourceList::prefixes`] there are.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.prefixes.len()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its identity: SHA-256 of the content of each part.
    pub fn digests(&self) -> Vec<[u8; 32]> {
        self.parts.iter().map(|part| part.digest).collect()
    }

    /// The list of one side with the node that began it; `None` when the section has neither key.
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
        // A part that could not be read was reported; the rest of the list is not judged without it.
        let parts = parts.into_iter().collect::<Option<_>>()?;
        Some((Self { parts }, first))
    }
}

/// The content of each part, in any order.
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
    let read: Vec<Option<Prefix>> = node.items(INLINE)?.iter().map(|node| node.source(INLINE)).collect();
    Some(Arc::new(Block::new(read.into_iter().collect::<Option<_>>()?)))
}

/// How many new flows a second a VIP takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Of all sources together: 1 to 10,000,000. Default: no limit.
    pub new_flows_per_second: Option<NonZeroU32>,
    /// Of each source prefix. Default: no limit.
    pub per_source: Option<PerSource>,
}

impl Limits {
    fn read(node: &Node<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let rate = section.optional("new_flows_per_second");
        let each = section.optional("per_source");
        if rate.is_none() && each.is_none() {
            node.report.error(&node.place, "a table without a limit", LIMITS);
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

/// A limit that each source prefix has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerSource {
    /// New flows a second of one prefix: 1 to 10,000,000.
    pub new_flows_per_second: NonZeroU32,
    /// How many leading bits of an IPv4 source are one source: 8 to 32. Default 32.
    pub v4_prefix: u8,
    /// The same for IPv6: 16 to 128. Default 64.
    pub v6_prefix: u8,
}

impl PerSource {
    fn read(node: &Node<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let rate = section.required("new_flows_per_second", "an integer from 1 to 10000000");
        let rate = rate.and_then(|node| node.number(1..=MAX_RATE)).and_then(NonZeroU32::new);
        let v4_prefix = section.or("v4_prefix", 32, |node| node.number(8..=32));
        let v6_prefix = section.or("v6_prefix", 64, |node| node.number(16..=128));
        section.finish();
        Some(Self { new_flows_per_second: rate?, v4_prefix, v6_prefix })
    }
}

/// A rate above this is none that a machine reaches; up to it rates are kept to a thousandth.
const MAX_RATE: u32 = 10_000_000;
const INLINE: &str = "a list of prefixes or addresses such as [\"198.51.100.0/24\", \"2001:db8::1\"]";
const FILES: &str = "a list of files such as [\"lists/office.txt\"]";
const LIMITS: &str = "new_flows_per_second, per_source, or both";
const EMPTY: &str = "one prefix at least: without any, no source is served";
