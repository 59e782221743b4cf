//! What the kernel says of a device's XDP support, by generic netlink.
//!
//! In: an interface's index, in the calling thread's network namespace. Out: its feature bits; `None` before
//! Linux 6.3, which does not know the question.
//! Invariant: parsing is total; what is cut short is no answer.
//! Source: Linux `include/uapi/linux/{genetlink,netdev}.h`, `Documentation/netlink/specs/netdev.yaml`.

use std::io;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};

/// The `xdp-features` of the device with this index.
pub(super) fn xdp_features(index: u32) -> Option<u64> {
    let mut socket = Socket::new(NETLINK_GENERIC).ok()?;
    socket.bind_auto().ok()?;
    socket.connect(&SocketAddr::new(0, 0)).ok()?;
    let family =
        ask(&socket, CONTROL, GET_FAMILY, Attribute { kind: FAMILY_NAME, value: b"netdev\0" }).ok()?;
    let family = attribute(&family, FAMILY_ID)?.try_into().ok().map(u16::from_ne_bytes)?;
    let device =
        ask(&socket, family, DEV_GET, Attribute { kind: DEV_IFINDEX, value: &index.to_ne_bytes() }).ok()?;
    attribute(&device, DEV_XDP_FEATURES)?.try_into().ok().map(u64::from_ne_bytes)
}

/// What a request asks about.
struct Attribute<'a> {
    kind: u16,
    value: &'a [u8],
}

/// One request with one attribute, and the attributes of its answer.
fn ask(socket: &Socket, family: u16, command: u8, attribute: Attribute<'_>) -> io::Result<Vec<u8>> {
    socket.send(&request(family, command, attribute), 0)?;
    let (answer, _) = socket.recv_from_full()?;
    body(&answer, family).map(<[u8]>::to_vec).ok_or(io::ErrorKind::Unsupported.into())
}

fn request(family: u16, command: u8, Attribute { kind, value }: Attribute<'_>) -> Vec<u8> {
    let padded = value.len().next_multiple_of(ALIGN);
    let length = HEADERS + ATTRIBUTE_HEADER + padded;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(u32::try_from(length).unwrap_or(0).to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    bytes.extend([0; 8]); // sequence and port: one question at a time
    bytes.extend([command, VERSION, 0, 0]);
    bytes.extend(u16::try_from(ATTRIBUTE_HEADER + value.len()).unwrap_or(0).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(length, 0);
    bytes
}

/// The attributes of a message of `family`; `None`: an error, or another message.
fn body(message: &[u8], family: u16) -> Option<&[u8]> {
    let length = message.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))?;
    let kind = message.get(4..6)?.try_into().ok().map(u16::from_ne_bytes)?;
    (kind == family).then_some(())?;
    message.get(HEADERS..usize::try_from(length).ok()?)
}

/// The value of the first attribute of this kind.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(attributes.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))?);
        let kind = attributes.get(2..4)?.try_into().ok().map(u16::from_ne_bytes)?;
        let value = attributes.get(ATTRIBUTE_HEADER..length)?;
        if kind & KIND_MASK == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(ALIGN)..)?;
    }
}

/// `GENL_ID_CTRL`, and its command and attributes.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `NETDEV_CMD_DEV_GET`, and its attributes.
const DEV_GET: u8 = 1;
const DEV_IFINDEX: u16 = 1;
const DEV_XDP_FEATURES: u16 = 3;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
const VERSION: u8 = 1;
/// A netlink header and a generic netlink one.
const HEADERS: usize = 16 + 4;
const ATTRIBUTE_HEADER: usize = 4;
const ALIGN: usize = 4;
/// Without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const KIND_MASK: u16 = 0x3fff;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(kind: u16, attributes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADERS + attributes.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 14]);
        bytes.extend(attributes);
        bytes
    }

    #[test]
    fn an_attribute_is_found_behind_others_of_odd_length() {
        let mut attributes = vec![7, 0, 2, 0, b'a', b'b', b'c', 0]; // 3 bytes, padded
        attributes.extend([6, 0, 1, 0, 0x1c, 0, 0, 0]);
        let whole = message(0x10, &attributes);
        let found = body(&whole, 0x10).unwrap();
        assert_eq!(attribute(found, 2), Some(&b"abc"[..]));
        assert_eq!(attribute(found, 1), Some(&[0x1c, 0][..]));
        assert_eq!(attribute(found, 3), None);
    }

    #[test]
    fn an_error_and_a_message_cut_short_are_no_answer() {
        assert_eq!(body(&message(2, &[0; 8]), 0x10), None);
        let whole = message(0x10, &[8, 0, 1, 0, 1, 2, 3, 4]);
        assert!(body(&whole, 0x10).is_some());
        assert_eq!(body(&whole[..whole.len() - 1], 0x10), None);
        assert_eq!(attribute(&[8, 0, 1, 0, 1, 2, 3], 1), None);
        assert_eq!(attribute(&[0, 0, 9, 0, 0, 0, 0, 0], 1), None, "no progress is no answer");
    }

    #[test]
    fn a_request_says_its_own_length() {
        let bytes = request(0x1b, 1, Attribute { kind: 2, value: b"netdev\0" });
        assert_eq!((bytes.len(), bytes[0], bytes[4], bytes[16]), (32, 32, 0x1b, 1));
        assert_eq!(&bytes[20..24], [11, 0, 2, 0]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes: Vec<u8>, wanted: u16) {
            if let Some(found) = body(&bytes, 0x10) {
                let _ = attribute(found, wanted);
            }
            let _ = attribute(&bytes, wanted);
        }
    }
}
