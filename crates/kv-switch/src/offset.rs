//! A protocol whose requests contain the key at a fixed position.
//!
//! The rest of the payload is not parsed. The effect of a request is therefore unknown, and every
//! request is treated as a conditional write.

use std::ops::ControlFlow;

use crate::{Application, Ask, Datagram, Effect, Encoding, Item, KeyRoom, Refusal, Verb};

/// The protocol of requests that contain the key at a fixed position, with a fixed length.
/// ```
/// use kv_switch::{Application, Datagram, KeyRoom, Offset};
///
/// let offset = Offset::new(2, 4);
/// let ask = offset.read(Datagram::whole(b"G:user;")).unwrap();
/// assert_eq!(offset.key(b"G:user;", &ask.first, &mut KeyRoom::default()), b"user");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    key: Item,
}

impl Offset {
    /// Creates the protocol for keys of `length` bytes that start at offset `start` of the payload.
    #[must_use]
    pub const fn new(start: u16, length: u16) -> Self {
        Self { key: Item { start, len: length, encoding: Encoding::Raw } }
    }
}

impl Application for Offset {
    fn read(&self, datagram: Datagram<'_>) -> Result<Ask, Refusal> {
        if self.key.len == 0 {
            return Err(Refusal::KeyEmpty);
        }
        if datagram.length() < usize::from(self.key.start) + usize::from(self.key.len) {
            return Err(Refusal::ShortFrame);
        }
        if self.key.bytes(datagram.payload()).is_empty() {
            return Err(Refusal::FirstFragmentTooShort);
        }
        Ok(Ask::one(Verb::Request.number(), Effect::Conditional, self.key))
    }

    fn items(&self, _: &[u8], ask: &Ask, each: &mut dyn FnMut(Item) -> ControlFlow<()>) {
        let _ = each(ask.first);
    }

    fn key<'a>(&self, payload: &'a [u8], item: &Item, _: &'a mut KeyRoom) -> &'a [u8] {
        item.bytes(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_holds_the_place_or_is_refused() {
        let payload: Vec<u8> = (0..40).collect();
        for (start, length) in [(0, 1), (0, 40), (39, 1), (5, 7)] {
            let offset = Offset::new(start, length);
            let wanted: Vec<u8> = (0..40).skip(start.into()).take(length.into()).collect();
            for len in 0..=40 {
                let ask = offset.read(Datagram::whole(&payload[..len]));
                let piece = offset.read(Datagram::first_piece(&payload[..len], 40));
                if len >= usize::from(start + length) {
                    assert_eq!(offset.key(&payload, &ask.unwrap().first, &mut KeyRoom::default()), wanted);
                    assert_eq!(piece, ask);
                } else {
                    assert_eq!((ask, piece), (Err(Refusal::ShortFrame), Err(Refusal::FirstFragmentTooShort)));
                }
            }
        }
        assert_eq!(Offset::new(0, 0).read(Datagram::whole(&payload)), Err(Refusal::KeyEmpty));
        assert_eq!(Offset::new(65_535, 65_535).read(Datagram::whole(&payload)), Err(Refusal::ShortFrame));
    }
}
