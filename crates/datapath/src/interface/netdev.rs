//! Reads the XDP features of a device with generic netlink. Kernels before Linux 6.3 do not support
//! this request. The parser accepts arbitrary bytes and returns `None` for truncated messages.
//!
//! See Linux `include/uapi/linux/{genetlink,netdev}.h` and
//! `Documentation/netlink/specs/netdev.yaml`.

use std::io;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};

/// Returns the `xdp-features` of the device with index `index`.
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

/// An attribute of a request.
struct Attribute<'a> {
    kind: u16,
    value: &'a [u8],
}

/// Sends a request with one attribute. Returns the attributes of the reply.
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
    // sequence number and port ID are 0, because only one request is in flight
    bytes.extend([0; 8]);
    bytes.extend([command, VERSION, 0, 0]);
    bytes.extend(u16::try_from(ATTRIBUTE_HEADER + value.len()).unwrap_or(0).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(length, 0);
    bytes
}

/// Returns the attributes of a message. Returns `None` if the message is an error message or does
/// not belong to `family`.
fn body(message: &[u8], family: u16) -> Option<&[u8]> {
    let length = message.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))?;
    let kind = message.get(4..6)?.try_into().ok().map(u16::from_ne_bytes)?;
    (kind == family).then_some(())?;
    message.get(HEADERS..usize::try_from(length).ok()?)
}

/// Returns the value of the first attribute whose type is `wanted`.
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

/// The generic netlink controller `GENL_ID_CTRL`, and below it the numbers of its command and
/// attributes.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// The command `NETDEV_CMD_DEV_GET`, and below it the numbers of its attributes.
const DEV_GET: u8 = 1;
const DEV_IFINDEX: u16 = 1;
const DEV_XDP_FEATURES: u16 = 3;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
const VERSION: u8 = 1;
/// The length of a netlink header plus a generic netlink header.
const HEADERS: usize = 16 + 4;
const ATTRIBUTE_HEADER: usize = 4;
const ALIGN: usize = 4;
/// The bits of an attribute type, without the flags `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
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
    fn attribute_is_found_behind_padded_attributes() {
        let mut attributes = vec![7, 0, 2, 0, b'a', b'b', b'c', 0]; // 3 bytes, padded
        attributes.extend([6, 0, 1, 0, 0x1c, 0, 0, 0]);
        let whole = message(0x10, &attributes);
        let found = body(&whole, 0x10).unwrap();
        assert_eq!(attribute(found, 2), Some(&b"abc"[..]));
        assert_eq!(attribute(found, 1), Some(&[0x1c, 0][..]));
        assert_eq!(attribute(found, 3), None);
    }

    #[test]
    fn body_refuses_errors_and_truncated_messages() {
        assert_eq!(body(&message(2, &[0; 8]), 0x10), None);
        let whole = message(0x10, &[8, 0, 1, 0, 1, 2, 3, 4]);
        assert!(body(&whole, 0x10).is_some());
        assert_eq!(body(&whole[..whole.len() - 1], 0x10), None);
        assert_eq!(attribute(&[8, 0, 1, 0, 1, 2, 3], 1), None);
        assert_eq!(attribute(&[0, 0, 9, 0, 0, 0, 0, 0], 1), None, "an attribute of length 0");
    }

    #[test]
    fn request_has_its_length() {
        let bytes = request(0x1b, 1, Attribute { kind: 2, value: b"netdev\0" });
        assert_eq!((bytes.len(), bytes[0], bytes[4], bytes[16]), (32, 32, 0x1b, 1));
        assert_eq!(&bytes[20..24], [11, 0, 2, 0]);
    }

    proptest! {
        #[test]
        fn attribute_accepts_any_bytes(bytes: Vec<u8>, wanted: u16) {
            if let Some(found) = body(&bytes, 0x10) {
                let _ = attribute(found, wanted);
            }
            let _ = attribute(&bytes, wanted);
        }
    }
}
