//! The VLAN tags of a frame as a value: read, pushed, popped, replaced. Source: IEEE 802.1Q.

use crate::protocol;

/// One tag as it stands in a frame: Ethernet type (0x8100 or 0x88a8), priority, drop eligibility, VLAN identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag([u8; 4]);

impl Tag {
    /// An 802.1Q tag. `None`: `id` above 4,094 or `priority` above 7. Identifier 0 says priority alone.
    #[must_use]
    pub const fn customer(id: u16, priority: u8) -> Option<Self> {
        Self::new(protocol::ETHERTYPE_VLAN, id, priority)
    }

    /// An 802.1ad service tag, the outer one of QinQ, as [`Tag::customer`].
    #[must_use]
    pub const fn service(id: u16, priority: u8) -> Option<Self> {
        Self::new(protocol::ETHERTYPE_QINQ, id, priority)
    }

    const fn new(kind: u16, id: u16, priority: u8) -> Option<Self> {
        if id > 4094 || priority > 7 {
            return None; // 4,095 is reserved
        }
        let ([k0, k1], [hi, lo]) = (kind.to_be_bytes(), id.to_be_bytes());
        Some(Self([k0, k1, priority << 5 | hi, lo]))
    }

    /// VLAN identifier, 0 to 4095.
    #[inline]
    #[must_use]
    pub const fn id(self) -> u16 {
        u16::from_be_bytes([self.0[2] & 0x0f, self.0[3]])
    }

    /// Priority code point, 0 to 7.
    #[inline]
    #[must_use]
    pub const fn priority(self) -> u8 {
        self.0[2] >> 5
    }

    /// With the priority and the drop eligibility of `other`.
    #[inline]
    #[must_use]
    pub const fn with_priority_of(self, other: Self) -> Self {
        let [k0, k1, hi, lo] = self.0;
        Self([k0, k1, other.0[2] & 0xf0 | hi & 0x0f, lo])
    }

    /// Whether this is a service tag (0x88a8).
    #[inline]
    #[must_use]
    pub const fn is_service(self) -> bool {
        u16::from_be_bytes([self.0[0], self.0[1]]) == protocol::ETHERTYPE_QINQ
    }

    pub(crate) const fn bytes(self) -> [u8; 4] {
        self.0
    }
}

/// The tags of a frame, outermost first: none, one, or two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tags {
    outer: Option<Tag>,
    /// `None` wherever `outer` is.
    inner: Option<Tag>,
}

impl Tags {
    /// An untagged frame.
    pub const NONE: Self = Self { outer: None, inner: None };

    /// The tags of `frame`, whose IP header starts at `l3` ([`crate::Parsed::l3`]). `None`: these are no tags.
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

    /// With `tag` in front of the others. `None`: there are two already.
    #[must_use]
    pub const fn push(self, tag: Tag) -> Option<Self> {
        match self.inner {
            Some(_) => None,
            None => Some(Self { outer: Some(tag), inner: self.outer }),
        }
    }

    /// Without the outermost tag; an untagged frame has none to lose.
    #[must_use]
    pub const fn pop(self) -> Self {
        Self { outer: self.inner, inner: None }
    }

    /// With `tag` in place of the outermost one, or as the only one.
    #[must_use]
    pub const fn replace(self, tag: Tag) -> Self {
        Self { outer: Some(tag), ..self }
    }

    /// The same with the priorities of a frame's tags: each that of the tag in its place, or of the frame's outermost where
    /// there was none. An untagged frame has none to give.
    #[must_use]
    pub fn with_priorities_of(self, frame: &Self) -> Self {
        let Some(outermost) = frame.outer else { return self };
        let inner = frame.inner.unwrap_or(outermost);
        Self {
            outer: self.outer.map(|tag| tag.with_priority_of(outermost)),
            inner: self.inner.map(|tag| tag.with_priority_of(inner)),
        }
    }

    /// The VLANs, outermost first: a lone tag with identifier 0 says priority alone, so that its frame is in none.
    #[must_use]
    pub fn ids(&self) -> [Option<u16>; 2] {
        match (self.outer, self.inner) {
            (Some(lone), None) => [Some(lone.id()).filter(|id| *id > 0), None],
            (outer, inner) => [outer.map(Tag::id), inner.map(Tag::id)],
        }
    }

    /// The outermost tag.
    #[inline]
    #[must_use]
    pub const fn outer(&self) -> Option<Tag> {
        self.outer
    }

    /// The tag behind the outermost one.
    #[inline]
    #[must_use]
    pub const fn inner(&self) -> Option<Tag> {
        self.inner
    }

    /// Bytes of a link header with these tags: 14, 18 or 22.
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
