//! A fuzz target for decapsulation.

use packet::{DecapsulateError, Encapsulation, decapsulate, decapsulate_in_place, network};

/// Checks that a decapsulated packet is part of the frame and is identical to the inner packet
/// except for the ECN field. A frame that is not decapsulated must remain unchanged.
pub(crate) fn check(frame: &[u8]) {
    let Some((_, ip)) = network(frame) else { return };
    let l3 = frame.len() - ip.len();
    let Some(tunnel) = decapsulate(ip) else { return };
    assert!(20 <= tunnel.inner && tunnel.inner < tunnel.end && tunnel.end <= ip.len());
    assert!(tunnel.source.is_ipv4() == tunnel.destination.is_ipv4() && tunnel.kind != Encapsulation::L2);
    let mut opened = frame.to_vec();
    match decapsulate_in_place(&mut opened, l3, &tunnel) {
        Ok(range) => {
            let opened = &opened[range];
            let (link, inner) = opened.split_at(l3);
            let (family, _) = network(opened).expect("the decapsulated frame does not contain IP");
            assert_eq!((family, &link[..l3 - 2]), (tunnel.family, &frame[..l3 - 2]));
            same_but_ecn(inner, &ip[tunnel.inner..tunnel.end]);
        }
        Err(error) => {
            let header = tunnel.family.header_len();
            assert_eq!(error == DecapsulateError::Bounds, tunnel.end - tunnel.inner < usize::from(header));
            assert_eq!(opened, frame);
        }
    }
}

/// Compares two packets. Decapsulation may change the ECN field (RFC 6040) and therefore the IPv4
/// header checksum.
fn same_but_ecn(opened: &[u8], carried: &[u8]) {
    assert_eq!(opened.len(), carried.len());
    let may_change: &[usize] = if carried[0] >> 4 == 4 { &[1, 10, 11] } else { &[1] };
    for (at, (now, before)) in opened.iter().zip(carried).enumerate() {
        assert!(now == before || may_change.contains(&at), "byte {at}: {before:02x}, then {now:02x}");
    }
    let ecn = if carried[0] >> 4 == 4 { 0x03 } else { 0x30 };
    assert_eq!(opened[1] & !ecn, carried[1] & !ecn);
}
