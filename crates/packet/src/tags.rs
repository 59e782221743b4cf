//! Reads, pushes, pops and replaces the VLAN tags of a frame (IEEE 802.1Q).

use crate::protocol;

/// One VLAN tag, which contains the Ethernet type (0x8100 or 0x88a8), priority, drop eligibility
/// and VLAN identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag([u8; 4]);

impl Tag {
    /// Creates an 802.1Q tag. Returns `None` if `id` exceeds 4,094 or `priority` exceeds 7. An
    /// identifier of 0 means that the tag carries only a priority.
    #[must_use]
    pub const fn customer(id: u16, priority: u8) -> Option<Self> {
        Self::new(protocol::ETHERTYPE_VLAN, id, priority)
    }

    /// Creates an 802.1ad service tag, the outer tag of QinQ. Returns `None` if `id` exceeds 4,094
    /// or `priority` exceeds 7.
    #[must_use]
    pub const fn service(id: u16, priority: u8) -> Option<Self> {
        Self::new(protocol::ETHERTYPE_QINQ, id, priority)
    }

    const fn new(kind: u16, id: u16, priority: u8) -> Option<Self> {
        if id > 4094 || priority > 7 {
            return None; // The identifier 4,095 is reserved.
        }
        let ([k0, k1], [hi, lo]) = (kind.to_be_bytes(), id.to_be_bytes());
        Some(Self([k0, k1, priority << 5 | hi, lo]))
    }

    /// Returns the VLAN identifier, from 0 to 4,095.
    #[inline]
    #[must_use]
    pub const fn id(self) -> u16 {
        u16::from_be_bytes([self.0[2] & 0x0f, self.0[3]])
    }

    /// Returns the priority code point, 0 to 7.
    #[inline]
    #[must_use]
    pub const fn priority(self) -> u8 {
        self.0[2] >> 5
    }

    /// Returns this tag with the priority and the drop eligibility of `other`.
    #[inline]
    #[must_use]
    pub const fn with_priority_of(self, other: Self) -> Self {
        let [k0, k1, hi, lo] = self.0;
        Self([k0, k1, other.0[2] & 0xf0 | hi & 0x0f, lo])
    }

    /// Returns `true` if this is a service tag (0x88a8).
    #[inline]
    #[must_use]
    pub const fn is_service(self) -> bool {
        u16::from_be_bytes([self.0[0], self.0[1]]) == protocol::ETHERTYPE_QINQ
    }

    pub(crate) const fn bytes(self) -> [u8; 4] {
        self.0
    }
}

/// The VLAN tags of a frame, outermost first. A frame has at most two tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tags {
    outer: Option<Tag>,
    /// The inner tag is always `None` if `outer` is `None`.
    inner: Option<Tag>,
}

impl Tags {
    /// The tags of an untagged frame.
    pub const NONE: Self = Self { outer: None, inner: None };

    /// Reads the tags of `frame`, whose IP header starts at `l3` ([`crate::Parsed::l3`]). Returns
    /// `None` if the bytes in front of `l3` are not VLAN tags.
    #[must_use]
    pub fn read(frame: &[u8], l3: u16) -> Option<Self> {
        let tag = |at: usize| {
            let tag = Tag(*frame.get(at..)?.first_chunk()?);
            let kind = u16::from_be_bytes([tag.0[0], tag.0[1]]);
            matches!(kind, protocol::ETHERTYPE_VLAN | protocol::ETHERTYPE_QINQ).then_some(tag)
        };
        match l3 {
            14 => Some(Self::NONE),
            18 => Some(Self { outer: Some(tag(12)?), inner: None }),
            22 => Some(Self { outer: Some(tag(12)?), inner: Some(tag(16)?) }),
            _ => None,
        }
    }

    /// Returns these tags with `tag` added as the outermost tag. Returns `None` if there are
    /// already two tags.
    #[must_use]
    pub const fn push(self, tag: Tag) -> Option<Self> {
        match self.inner {
            Some(_) => None,
            None => Some(Self { outer: Some(tag), inner: self.outer }),
        }
    }

    /// Returns these tags without the outermost tag. An untagged frame stays untagged.
    #[must_use]
    pub const fn pop(self) -> Self {
        Self { outer: self.inner, inner: None }
    }

    /// Returns these tags with the outermost one replaced by `tag`. An untagged frame gets `tag` as
    /// its only tag.
    #[must_use]
    pub const fn replace(self, tag: Tag) -> Self {
        Self { outer: Some(tag), ..self }
    }

    /// Returns these tags with the priorities of the tags at the same positions in `frame`. If
    /// `frame` has only one tag, both tags get the priority of that tag. If `frame` is untagged,
    /// the priorities stay unchanged.
    #[must_use]
    pub fn with_priorities_of(self, frame: &Self) -> Self {
        let Some(outermost) = frame.outer else { return self };
        let inner = frame.inner.unwrap_or(outermost);
        Self {
            outer: self.outer.map(|tag| tag.with_priority_of(outermost)),
            inner: self.inner.map(|tag| tag.with_priority_of(inner)),
        }
    }

    /// Returns the VLAN identifiers, outermost first. A single tag with identifier 0 carries only a
    /// priority, so its frame belongs to no VLAN.
    #[must_use]
    pub fn ids(&self) -> [Option<u16>; 2] {
        match (self.outer, self.inner) {
            (Some(lone), None) => [Some(lone.id()).filter(|id| *id > 0), None],
            (outer, inner) => [outer.map(Tag::id), inner.map(Tag::id)],
        }
    }

    /// Returns the outermost tag.
    #[inline]
    #[must_use]
    pub const fn outer(&self) -> Option<Tag> {
        self.outer
    }

    /// Returns the tag after the outermost tag.
    #[inline]
    #[must_use]
    pub const fn inner(&self) -> Option<Tag> {
        self.inner
    }

    /// Returns the length of a link header with these tags: 14, 18 or 22 bytes.
    #[inline]
    #[must_use]
    pub const fn link_len(&self) -> usize {
        match (self.outer, self.inner) {
            (None, _) => 14,
            (Some(_), None) => 18,
            (Some(_), Some(_)) => 22,
        }
    }
}

#[cfg(test)]
mod tests;
