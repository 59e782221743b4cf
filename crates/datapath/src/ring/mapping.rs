//! Where the rings of a socket lie: libxdp has mapped them, and the kernel says where in our memory that is.
//!
//! In: a bound socket. Out: the [`Memory`] of each of its four rings.
//! A second mapping of our own would do from Linux 6.4 on; before, a bound socket gives none (`xsk_mmap`: EBUSY). The list of
//! mappings is there in every version, and names each by its socket and by the offset that stands for the ring.
//! Not here: making the socket and its rings (xsk-rs).
//! Source: Linux include/uapi/linux/if_xdp.h; proc_pid_maps(5).

use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use libc::{xdp_mmap_offsets, xdp_ring_offset};

use super::Memory;
use crate::frame::Descriptor;

/// The four rings of a socket.
pub(crate) struct Rings {
    pub(crate) rx: Memory<Descriptor>,
    pub(crate) tx: Memory<Descriptor>,
    pub(crate) fill: Memory<u64>,
    pub(crate) completion: Memory<u64>,
}

impl Rings {
    /// The rings of a socket, each of `size` slots.
    ///
    /// # Errors
    /// What the kernel says; that a ring is mapped nowhere, or too small.
    /// # Safety
    /// The rings of `socket`, mapped by libxdp, have `size` slots, are used by nobody else, and stay mapped for as long as the values live.
    pub(crate) unsafe fn of(socket: RawFd, size: u32) -> io::Result<Self> {
        let offsets = offsets(socket)?;
        let name = std::fs::read_link(format!("/proc/self/fd/{socket}"))?;
        let mappings = Mappings {
            list: std::fs::read_to_string("/proc/self/maps")?,
            socket: name.to_string_lossy().into(),
        };
        // SAFETY: by the contract of this function; descriptors are of integers.
        let rx = unsafe { mappings.ring(RX, &offsets.rx, size) }?;
        // SAFETY: as above.
        let tx = unsafe { mappings.ring(TX, &offsets.tx, size) }?;
        // SAFETY: as above, and addresses are integers.
        let fill = unsafe { mappings.ring(libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, size) }?;
        // SAFETY: as above.
        let completion = unsafe { mappings.ring(libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, size) }?;
        Ok(Self { rx, tx, fill, completion })
    }
}

/// Offsets in a socket that stand for rings, of the type that those of the UMEM have.
const RX: u64 = libc::XDP_PGOFF_RX_RING.cast_unsigned();
const TX: u64 = libc::XDP_PGOFF_TX_RING.cast_unsigned();

/// Where each ring's words lie in its mapping.
fn offsets(socket: RawFd) -> io::Result<xdp_mmap_offsets> {
    let mut offsets = MaybeUninit::<xdp_mmap_offsets>::zeroed();
    let mut len = libc::socklen_t::try_from(size_of::<xdp_mmap_offsets>()).unwrap_or(0);
    // SAFETY: `offsets` has as many bytes as `len` announces, and outlives the call.
    let result = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            offsets.as_mut_ptr().cast::<libc::c_void>(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if len as usize != size_of::<xdp_mmap_offsets>() {
        return Err(io::Error::other("rings without flags (before Linux 5.4)"));
    }
    // SAFETY: zeroes are valid, and the kernel has written all of it.
    Ok(unsafe { offsets.assume_init() })
}

/// The process's mappings, of which those of one socket matter.
struct Mappings {
    /// As /proc/self/maps has them.
    list: String,
    /// `socket:[INODE]`.
    socket: String,
}

impl Mappings {
    /// The ring that is mapped at this offset of the socket.
    ///
    /// # Safety
    /// See [`Memory::new`].
    unsafe fn ring<T: Copy>(&self, offset: u64, words: &xdp_ring_offset, size: u32) -> io::Result<Memory<T>> {
        let place = self
            .place(offset)
            .ok_or_else(|| io::Error::other(format!("no ring is mapped at {offset:#x}")))?;
        let slots = size as usize * size_of::<T>();
        let at = |offset: u64, bytes: usize, alignment: usize| {
            let start = place.start.checked_add(usize::try_from(offset).ok()?)?;
            let fits = start.checked_add(bytes)? <= place.end && start.is_multiple_of(alignment);
            NonZeroUsize::new(start).filter(|_| fits)
        };
        let word = |offset: u64| at(offset, size_of::<u32>(), align_of::<u32>());
        let found = (
            word(words.producer),
            word(words.consumer),
            word(words.flags),
            at(words.desc, slots, align_of::<T>()),
        );
        let (Some(producer), Some(consumer), Some(flags), Some(first)) = found else {
            return Err(io::Error::other(format!(
                "a ring of {} bytes is mapped at {offset:#x}",
                place.len()
            )));
        };
        let words = [producer, consumer, flags].map(NonNull::with_exposed_provenance);
        // SAFETY: they lie in the mapping, aligned, as was checked; the rest is the contract of this function.
        Ok(unsafe { Memory::new(words, NonNull::with_exposed_provenance(first), size) })
    }

    /// Where that offset of the socket is mapped.
    fn place(&self, offset: u64) -> Option<Range<usize>> {
        self.list.lines().find_map(|line| {
            // start-end permissions offset device inode path
            let mut fields = line.split_ascii_whitespace();
            let (start, end) = fields.next()?.split_once('-')?;
            let at = fields.nth(1)?;
            let is_it = fields.nth(2)? == self.socket && u64::from_str_radix(at, 16).ok()? == offset;
            let address = |text| usize::from_str_radix(text, 16).ok();
            if is_it { Some(address(start)?..address(end)?) } else { None }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
55d0c0000000-55d0c0001000 r--p 00000000 fe:00 4711                       /usr/bin/sluicegate
7f0000000000-7f0000009000 rw-s 180000000 00:09 12345                     socket:[12345]
7f0000010000-7f0000015000 rw-s 100000000 00:09 12345                     socket:[12345]
7f0000020000-7f0000029000 rw-s 80000000 00:09 12345                      socket:[12345]
7f0000030000-7f0000039000 rw-s 00000000 00:09 12345                      socket:[12345]
7f0000040000-7f0000049000 rw-s 00000000 00:09 123                        socket:[123]
7f0000050000-7f0000051000 rw-p 00000000 00:00 0
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
";

    fn mappings(inode: u32) -> Mappings {
        Mappings { list: LIST.to_owned(), socket: format!("socket:[{inode}]") }
    }

    #[test]
    fn a_ring_is_found_by_its_socket_and_its_offset() {
        let places = [(0, 3), (0x8000_0000, 2), (0x1_0000_0000, 1), (0x1_8000_0000, 0)];
        for (offset, place) in places {
            let start = 0x7f00_0000_0000 + place * 0x1_0000;
            assert_eq!(mappings(12345).place(offset).map(|range| range.start), Some(start), "{offset:#x}");
        }
        assert_eq!(mappings(123).place(0), Some(0x7f00_0004_0000..0x7f00_0004_9000));
        assert_eq!(mappings(123).place(0x8000_0000), None);
        assert_eq!(mappings(1234).place(0), None);
    }

    #[test]
    fn a_mapping_that_does_not_hold_the_ring_is_refused() {
        let words = |desc| xdp_ring_offset { producer: 0, consumer: 64, desc, flags: 128 };
        let ring = |desc, size| {
            // SAFETY: nothing is read or written through it.
            unsafe { mappings(12345).ring::<u64>(0x1_0000_0000, &words(desc), size) }
        };
        // 5 pages.
        assert!(ring(192, 2_048).is_ok() && ring(4_096, 2_048).is_ok());
        for (desc, size) in
            [(4_097, 1_024), (4_104, 2_048), (192, 4_096), (u64::MAX, 1), (u64::MAX - 8_191, 1_024)]
        {
            let refused = ring(desc, size).unwrap_err().to_string();
            assert_eq!(refused, "a ring of 20480 bytes is mapped at 0x100000000", "{desc} {size}");
        }
    }
}
