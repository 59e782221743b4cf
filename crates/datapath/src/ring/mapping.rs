//! Finds the rings of a socket in the memory of this process. libxdp has already mapped the rings.
//! The file /proc/self/maps lists each mapping with its socket and with the offset that identifies
//! the ring.
//!
//! Mapping the rings a second time works only on Linux 6.4 and later. On older kernels, `mmap` of a
//! bound socket fails with EBUSY (`xsk_mmap`).
//!
//! See Linux include/uapi/linux/if_xdp.h and proc_pid_maps(5).

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
    /// Finds the rings of `socket`. The receive ring has `rx_size` slots, and each other ring has
    /// `size` slots.
    ///
    /// # Errors
    /// Returns the kernel's error, or an error if a ring is not mapped or is too small.
    ///
    /// # Safety
    /// libxdp must have mapped the rings of `socket` with these sizes. No other code may use the
    /// rings, and they must stay mapped as long as the returned values live.
    pub(crate) unsafe fn of(socket: RawFd, rx_size: u32, size: u32) -> io::Result<Self> {
        let offsets = offsets(socket)?;
        let name = std::fs::read_link(format!("/proc/self/fd/{socket}"))?;
        let mappings = Mappings {
            list: std::fs::read_to_string("/proc/self/maps")?,
            socket: name.to_string_lossy().into(),
        };
        // SAFETY: the caller upholds the contract of this function. Descriptors consist of
        // integers, so every bit pattern is valid.
        let rx = unsafe { mappings.ring(RX, &offsets.rx, rx_size) }?;
        // SAFETY: the caller upholds the contract of this function. Descriptors consist of
        // integers, so every bit pattern is valid.
        let tx = unsafe { mappings.ring(TX, &offsets.tx, size) }?;
        // SAFETY: the caller upholds the contract of this function. Addresses are integers, so
        // every bit pattern is valid.
        let fill = unsafe { mappings.ring(libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, size) }?;
        // SAFETY: the caller upholds the contract of this function. Addresses are integers, so
        // every bit pattern is valid.
        let completion = unsafe { mappings.ring(libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, size) }?;
        Ok(Self { rx, tx, fill, completion })
    }
}

/// The `mmap` offsets of the receive and transmit rings. The offsets are converted to the type that
/// libc uses for the offsets of the fill and completion rings.
const RX: u64 = libc::XDP_PGOFF_RX_RING.cast_unsigned();
const TX: u64 = libc::XDP_PGOFF_TX_RING.cast_unsigned();

/// Returns the offsets of the index words and slots of each ring within its mapping.
fn offsets(socket: RawFd) -> io::Result<xdp_mmap_offsets> {
    let mut offsets = MaybeUninit::<xdp_mmap_offsets>::zeroed();
    let mut len = libc::socklen_t::try_from(size_of::<xdp_mmap_offsets>()).unwrap_or(0);
    // SAFETY: `offsets` has `len` bytes and outlives the call.
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
        return Err(io::Error::other("AF_XDP rings have no flags (Linux 5.4 or later is needed)"));
    }
    // SAFETY: all zeros are a valid value, and the kernel has overwritten the complete structure.
    Ok(unsafe { offsets.assume_init() })
}

/// The list of memory mappings of the process, and the name of one socket in this list.
struct Mappings {
    /// The content of /proc/self/maps.
    list: String,
    /// The name of the socket in the list, `socket:[INODE]`.
    socket: String,
}

impl Mappings {
    /// Returns the ring of the socket that is mapped with the `mmap` offset `offset`.
    ///
    /// # Safety
    /// See [`Memory::new`].
    unsafe fn ring<T: Copy>(&self, offset: u64, words: &xdp_ring_offset, size: u32) -> io::Result<Memory<T>> {
        let place = self
            .place(offset)
            .ok_or_else(|| io::Error::other(format!("no AF_XDP ring is mapped at offset {offset:#x}")))?;
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
                "AF_XDP ring at offset {offset:#x} is too small: {} bytes",
                place.len()
            )));
        };
        let words = [producer, consumer, flags].map(NonNull::with_exposed_provenance);
        // SAFETY: the checks above show that the words and slots are aligned and inside the
        // mapping. The caller upholds the other requirements.
        Ok(unsafe { Memory::new(words, NonNull::with_exposed_provenance(first), size) })
    }

    /// Returns the address range of the mapping that has the offset `offset` and belongs to the
    /// socket.
    fn place(&self, offset: u64) -> Option<Range<usize>> {
        self.list.lines().find_map(|line| {
            // The fields of a line are start-end, permissions, offset, device, inode and path.
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
    fn place_is_found_by_socket_and_offset() {
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
    fn ring_in_a_small_mapping_is_refused() {
        let words = |desc| xdp_ring_offset { producer: 0, consumer: 64, desc, flags: 128 };
        let ring = |desc, size| {
            // SAFETY: this test never reads or writes the ring.
            unsafe { mappings(12345).ring::<u64>(0x1_0000_0000, &words(desc), size) }
        };
        // The test mapping has 5 pages.
        assert!(ring(192, 2_048).is_ok() && ring(4_096, 2_048).is_ok());
        for (desc, size) in
            [(4_097, 1_024), (4_104, 2_048), (192, 4_096), (u64::MAX, 1), (u64::MAX - 8_191, 1_024)]
        {
            let refused = ring(desc, size).unwrap_err().to_string();
            assert_eq!(
                refused, "AF_XDP ring at offset 0x100000000 is too small: 20480 bytes",
                "{desc} {size}"
            );
        }
    }
}
