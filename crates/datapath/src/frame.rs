//! A frame: the one handle on a chunk of the UMEM.
//!
//! Not here: its bytes (`umem`), and those of a packet that lies in several (`slots`, `long`).

use std::mem::offset_of;

/// A place in the packet memory, as the receive and transmit rings have it: `struct xdp_desc` of the kernel.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Descriptor {
    /// The packet's first byte, counted from the start of the memory.
    addr: u64,
    /// Bytes of the packet here.
    len: u32,
    options: u32,
}

const _: () = {
    use libc::xdp_desc;
    assert!(
        size_of::<Descriptor>() == size_of::<xdp_desc>()
            && align_of::<Descriptor>() == align_of::<xdp_desc>()
    );
    assert!(offset_of!(Descriptor, addr) == offset_of!(xdp_desc, addr));
    assert!(offset_of!(Descriptor, len) == offset_of!(xdp_desc, len));
    assert!(offset_of!(Descriptor, options) == offset_of!(xdp_desc, options));
};

impl Descriptor {
    /// An address alone, as the fill and completion rings have it.
    #[inline]
    pub(crate) const fn at(addr: u64) -> Self {
        Self { addr, len: 0, options: 0 }
    }

    /// As the kernel counts.
    #[inline]
    pub(crate) const fn offset(self) -> u64 {
        self.addr
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "addresses have 64 bits where there is AF_XDP")]
    pub(crate) const fn addr(self) -> usize {
        self.addr as usize
    }

    #[inline]
    pub(crate) const fn len(self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(crate) const fn set_len(&mut self, len: u32) {
        self.len = len;
    }

    /// Whether another descriptor of the same packet follows. On a [`Frame`]: it is long.
    #[inline]
    pub(crate) const fn is_followed(self) -> bool {
        self.options & libc::XDP_PKT_CONTD != 0
    }

    #[inline]
    pub(crate) const fn set_followed(&mut self, is_followed: bool) {
        self.options = if is_followed { libc::XDP_PKT_CONTD } else { 0 };
    }
}

/// One UMEM chunk, owned. Neither `Clone` nor `Copy`: two owners of one chunk is the bug it removes.
#[must_use = "a frame goes to a ring or to a pool; dropping it loses the chunk"]
#[derive(Debug)]
pub struct Frame(pub(crate) Descriptor);

impl Frame {
    /// Whether its packet is longer than its chunk, and lies in a slot.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.0.is_followed()
    }
}
