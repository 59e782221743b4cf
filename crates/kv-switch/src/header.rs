//! The AppSwitch preamble, a header that clients can put before the payload of any protocol.
//!
//! The preamble is 9 bytes long and contains the application id (1 byte), and the start and the end
//! of the key (4 bytes each, big-endian). Start and end are offsets from the first byte of the UDP
//! payload, and the end is exclusive. The preamble does not describe the effect of a request, so
//! every request is treated as a conditional write.
//!
//! The preamble is described in §5.1 and Figure 4 of the AppSwitch paper (Cho et al.). The paper
//! defines neither the values of the application id nor the origin of the offsets.

use std::ops::ControlFlow;

use crate::{Application, Ask, Datagram, Effect, Item, KeyRoom, MAX_KEY_BYTES, Refusal, Verb};

/// The protocol of requests that begin with the AppSwitch preamble.
/// ```
/// use kv_switch::{Application, Datagram, Header, KeyRoom};
///
/// let mut request = vec![7, 0, 0, 0, 13, 0, 0, 0, 17]; // application 7; the key is bytes 13 to 16
/// request.extend(b"GET user\r\n");
/// let header = Header::new(7);
/// let ask = header.read(Datagram::whole(&request)).unwrap();
/// assert_eq!(header.key(&request, &ask.first, &mut KeyRoom::default()), b"user");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    id: u8,
}

impl Header {
    /// Creates the protocol for the application id `id`. Requests with a different application id
    /// are refused.
    #[must_use]
    pub const fn new(id: u8) -> Self {
        Self { id }
    }
}

impl Application for Header {
    fn read(&self, datagram: Datagram<'_>) -> Result<Ask, Refusal> {
        let (&[id, start @ .., e1, e2, e3, e4], _) =
            datagram.payload().split_first_chunk::<PREAMBLE>().ok_or(Refusal::ShortFrame)?;
        if id != self.id {
            return Err(Refusal::OtherApplication);
        }
        let offset = |bytes| usize::try_from(u32::from_be_bytes(bytes)).map_err(|_| Refusal::WrongOffsets);
        let (start, end) = (offset(start)?, offset([e1, e2, e3, e4])?);
        if start < PREAMBLE || end > datagram.length() {
            return Err(Refusal::WrongOffsets);
        }
        let key = match end.checked_sub(start).ok_or(Refusal::WrongOffsets)? {
            0 => return Err(Refusal::KeyEmpty),
            len @ 1..=MAX_KEY_BYTES => Item::raw(start, len).ok_or(Refusal::WrongOffsets)?,
            _ => return Err(Refusal::KeyTooLong),
        };
        if key.bytes(datagram.payload()).is_empty() {
            return Err(Refusal::FirstFragmentTooShort);
        }
        Ok(Ask::one(Verb::Request.number(), Effect::Conditional, key))
    }

    fn items(&self, _: &[u8], ask: &Ask, each: &mut dyn FnMut(Item) -> ControlFlow<()>) {
        let _ = each(ask.first);
    }

    fn key<'a>(&self, payload: &'a [u8], item: &Item, _: &'a mut KeyRoom) -> &'a [u8] {
        item.bytes(payload)
    }
}

const PREAMBLE: usize = 9;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(id: u8, start: u32, end: u32, rest: &[u8]) -> Vec<u8> {
        [&[id], &start.to_be_bytes()[..], &end.to_be_bytes(), rest].concat()
    }

    fn read(payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        let header = Header::new(7);
        let ask = header.read(Datagram::whole(payload))?;
        Ok(header.key(payload, &ask.first, &mut KeyRoom::default()).to_vec())
    }

    #[test]
    fn offsets_count_from_the_payloads_start() {
        assert_eq!(read(&request(7, 9, 12, b"abc")).unwrap(), b"abc");
        assert_eq!(read(&request(7, 10, 12, b"abcd")).unwrap(), b"bc");
    }

    #[test]
    fn what_is_wrong_is_refused_by_name() {
        let long = [b'k'; 300];
        for (payload, refusal) in [
            (request(7, 9, 10, b"a")[..8].to_vec(), Refusal::ShortFrame),
            (request(8, 9, 10, b"a"), Refusal::OtherApplication),
            (request(7, 9, 13, b"abc"), Refusal::WrongOffsets),
            // the key starts within the preamble
            (request(7, 8, 10, b"abc"), Refusal::WrongOffsets),
            (request(7, 11, 10, b"abc"), Refusal::WrongOffsets),
            (request(7, 10, 10, b"abc"), Refusal::KeyEmpty),
            (request(7, u32::MAX, u32::MAX, b"abc"), Refusal::WrongOffsets),
            (request(7, 0x0100_0009, 0x0100_000a, b"abc"), Refusal::WrongOffsets),
            (request(7, 9, 9 + 251, &long), Refusal::KeyTooLong),
        ] {
            assert_eq!(read(&payload), Err(refusal), "{payload:?}");
        }
        assert_eq!(read(&request(7, 9, 9 + 250, &long)).unwrap(), &long[..250]);
    }

    #[test]
    fn a_first_piece_must_hold_the_key() {
        let (header, payload) = (Header::new(7), request(7, 9, 12, b"abc, and more"));
        for at_hand in 9..payload.len() {
            let read = header
                .read(Datagram::first_piece(&payload[..at_hand], u16::try_from(payload.len()).unwrap()));
            assert_eq!(read.err(), (at_hand < 12).then_some(Refusal::FirstFragmentTooShort));
        }
    }

    proptest! {
        #[test]
        fn any_offsets_give_those_bytes_or_a_refusal(start in 0_u32..40, end in 0_u32..40, rest in prop::collection::vec(any::<u8>(), 0..30)) {
            let payload = request(7, start, end, &rest);
            let key = payload.iter().copied().enumerate();
            let key = key.filter(|&(at, _)| (start as usize..end as usize).contains(&at)).map(|(_, byte)| byte);
            let fits = start >= 9 && end > start && end as usize <= payload.len();
            prop_assert_eq!(read(&payload).ok(), fits.then(|| key.collect()));
        }
    }
}
