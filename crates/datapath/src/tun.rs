//! A TUN device. Packets that the kernel routes to the device are read from a file descriptor, and
//! each read returns one IP packet. The device is not persistent: when the last descriptor is
//! closed, the kernel removes the device with its addresses and routes. The caller configures
//! addresses, routes and rules with rtnetlink.
//!
//! See Linux `Documentation/networking/tuntap.rst` and `include/uapi/linux/if_tun.h`.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::interface::checked_name;

/// Creates the TUN device `name` in the network namespace of the calling thread. The device is down
/// and has no addresses. Reads never block. Each read returns one IP packet without a protocol
/// header.
///
/// # Errors
/// - `InvalidInput` if `name` is not a valid interface name.
/// - `ResourceBusy` if the device exists.
/// - `PermissionDenied` without `CAP_NET_ADMIN`.
/// - `NotFound` without `/dev/net/tun`.
pub fn open_tun(name: &str) -> io::Result<OwnedFd> {
    let name = checked_name(name).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE)?;
    let mut request = libc::ifreq {
        ifr_name: name.map(|byte| libc::c_char::from_ne_bytes([byte])),
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: (IFF_TUN | IFF_NO_PI | IFF_TUN_EXCL).cast_signed(),
        },
    };
    // SAFETY: `request` is a complete `ifreq` that outlives the call. The kernel reads and writes
    // only this structure.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(file.into()) }
}

const DEVICE: &str = "/dev/net/tun";
const IFF_TUN: u16 = 0x0001;
/// The flag for packets without a protocol header.
const IFF_NO_PI: u16 = 0x1000;
/// The flag that makes the call fail if the device exists. This flag prevents the use of a
/// persistent device that belongs to another program.
const IFF_TUN_EXCL: u16 = 0x8000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_tun_refuses_invalid_names() {
        for name in ["", "a-name-of-16-byte", "a/b", "a b", ".."] {
            assert_eq!(open_tun(name).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
    }
}
