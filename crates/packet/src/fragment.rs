//! The fragment information of IPv4 and IPv6 packets.

/// The fragment information of a packet: identification, offset and the more-fragments flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// The packet is not fragmented, or it is an atomic fragment (RFC 6946: offset 0 and no further
    /// fragments).
    None,
    /// The first fragment of a datagram, which has offset 0 and the more-fragments flag. The first
    /// fragment carries the ports.
    First {
        /// The identification of the datagram, which is 16 bits wide in IPv4.
        id: u32,
    },
    /// A fragment that does not start at offset 0. Such a fragment carries no ports.
    Later {
        /// The identification of the datagram, which is 16 bits wide in IPv4.
        id: u32,
        /// The offset of this fragment in the payload of the datagram, in bytes. The offset is a
        /// multiple of 8 and never 0.
        offset: u16,
        /// `true` if more fragments follow.
        more: bool,
    },
}

impl Fragment {
    /// Returns the identification of the datagram, or `None` if the packet is not fragmented.
    #[inline]
    #[must_use]
    pub const fn id(self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::First { id } | Self::Later { id, .. } => Some(id),
        }
    }

    /// Returns the offset of the fragment in the payload of the datagram, in bytes. The offset is 0
    /// for a packet that is not fragmented.
    #[inline]
    #[must_use]
    pub const fn offset(self) -> u16 {
        match self {
            Self::None | Self::First { .. } => 0,
            Self::Later { offset, .. } => offset,
        }
    }

    /// Returns `true` if more fragments of the datagram follow.
    #[inline]
    #[must_use]
    pub const fn more(self) -> bool {
        match self {
            Self::None => false,
            Self::First { .. } => true,
            Self::Later { more, .. } => more,
        }
    }

    /// Builds the value from the offset in bytes and the more-fragments flag.
    #[inline]
    pub(crate) const fn from_parts(id: u32, offset: u16, more: bool) -> Self {
        match (offset, more) {
            (0, false) => Self::None,
            (0, true) => Self::First { id },
            _ => Self::Later { id, offset, more },
        }
    }
}
