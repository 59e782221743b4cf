//! A TUN device: what the kernel routes into it comes out of a file, one IP packet a read.
//!
//! In: a name. Out: the file. Not here: its state, routes and rules (rtnetlink's business), what becomes of the packets.
//! Invariant: the device is not persistent; it goes with the last descriptor, and its addresses and routes with it.
//! Source: Linux `Documentation/networking/tuntap.rst`, `include/uapi/linux/if_tun.h`.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::interface::checked_name;

/// Makes the TUN device `name` in the network namespace of the calling thread, switched off and without addresses.
/// Reads from the file never block, and give one IP packet each with nothing in front of it.
///
/// # Errors
/// Invalid input: no name for an interface. Busy: there is such a device. Not permitted: `CAP_NET_ADMIN` is missing.
/// Not found: there is no `/dev/net/tun`.
pub fn open_tun(name: &str) -> io::Result<OwnedFd> {
    let name = checked_name(name).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE)?;
    let mut request = libc::ifreq {
        ifr_name: name.map(|byte| libc::c_char::from_ne_bytes([byte])),
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: (IFF_TUN | IFF_NO_PI | IFF_TUN_EXCL).cast_signed(),
        },
    };
    // SAFETY: `request` is a whole `ifreq`, which the kernel reads and writes, and it outlives the call.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(file.into()) }
}

const DEVICE: &str = "/dev/net/tun";
const IFF_TUN: u16 = 0x0001;
/// No protocol number in front of packets.
const IFF_NO_PI: u16 = 0x1000;
/// Fail when there is such a device: somebody's persistent one is not taken over.
const IFF_TUN_EXCL: u16 = 0x8000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_interface_can_have_is_refused_before_the_kernel_is_asked() {
        for name in ["", "a-name-of-16-byte", "a/b", "a b", ".."] {
            assert_eq!(open_tun(name).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
    }
}
