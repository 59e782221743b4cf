//! Reads the handover data that another process has written.

use std::net::IpAddr;

use super::packet::SessionState;

/// Reads values from the front of a byte slice. The methods return `None` at the end of the data or
/// for an invalid value.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        self.byte().filter(|byte| *byte <= 1).map(|byte| byte == 1)
    }

    pub(crate) fn word(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn long(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn state(&mut self) -> Option<SessionState> {
        self.byte().filter(|byte| *byte <= 3).map(SessionState::new)
    }

    /// Reads an optional address. `Some(None)` means that the data has no address.
    pub(crate) fn address(&mut self) -> Option<Option<IpAddr>> {
        match self.byte()? {
            0 => Some(None),
            4 => self.array::<4>().map(|octets| Some(octets.into())),
            6 => self.array::<16>().map(|octets| Some(octets.into())),
            _ => None,
        }
    }
}
