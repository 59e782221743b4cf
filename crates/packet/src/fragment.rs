//! Which piece of a packet a frame carries, for both families.

/// Whether a packet is a piece of another, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// A whole packet, or an atomic fragment (RFC 6946: offset 0, nothing follows).
    None,
    /// The piece with the ports: offset 0, more follow.
    First {
        /// Identification; 16 bits for IPv4.
        id: u32,
    },
    /// A piece without ports.
    Later {
        /// Identification; 16 bits for IPv4.
        id: u32,
        /// Offset in bytes of this piece in the whole payload, a multiple of 8, never 0.
        offset: u16,
        /// More pieces follow.
        more: bool,
    },
}

impl Fragment {
    /// From the fields of either family: offset in bytes, the more-fragments flag.
    #[inline]
    pub(crate) const fn from_parts(id: u32, offset: u16, more: bool) -> Self {
        match (offset, more) {
            (0, false) => Self::None,
            (0, true) => Self::First { id },
            _ => Self::Later { id, offset, more },
        }
    }
}
