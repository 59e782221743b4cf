//! A [`Frame`] is the only handle to a chunk of the UMEM. The module `umem` gives access to the
//! bytes of a frame. The modules `slots` and `long` handle packets that use several chunks.

use std::mem::offset_of;

/// A location in the UMEM, in the format of the receive and transmit rings (`struct xdp_desc` in
/// the kernel).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Descriptor {
    /// The offset of the first packet byte from the start of the UMEM.
    addr: u64,
    /// The number of packet bytes in this chunk.
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
    /// Creates a descriptor that has only an address. Entries of the fill and completion rings have
    /// no other fields.
    #[inline]
    pub(crate) const fn at(addr: u64) -> Self {
        Self { addr, len: 0, options: 0 }
    }

    /// Returns the offset from the start of the UMEM, the form in which the kernel addresses packet
    /// bytes.
    #[inline]
    pub(crate) const fn offset(self) -> u64 {
        self.addr
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "platforms with AF_XDP have 64-bit addresses")]
    pub(crate) const fn addr(self) -> usize {
        self.addr as usize
    }

    /// Moves the start toward the start of the chunk by `bytes`. The length does not change.
    #[inline]
    pub(crate) const fn move_back(&mut self, bytes: usize) {
        self.addr -= bytes as u64;
    }

    #[inline]
    pub(crate) const fn len(self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(crate) const fn set_len(&mut self, len: u32) {
        self.len = len;
    }

    /// Returns `true` if the packet continues in the next descriptor. In a [`Frame`], this flag
    /// marks a long packet.
    #[inline]
    pub(crate) const fn is_followed(self) -> bool {
        self.options & libc::XDP_PKT_CONTD != 0
    }

    #[inline]
    pub(crate) const fn set_followed(&mut self, is_followed: bool) {
        self.options = if is_followed { libc::XDP_PKT_CONTD } else { 0 };
    }
}

/// An owned UMEM chunk. The type is neither `Clone` nor `Copy`, so that each chunk has only one
/// owner.
#[must_use = "a frame must be returned to a ring or a pool, or its chunk is lost"]
#[derive(Debug)]
pub struct Frame(pub(crate) Descriptor);

impl Frame {
    /// Returns `true` if the packet is longer than its chunk. The bytes of such a packet are stored
    /// in a slot.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.0.is_followed()
    }
}
