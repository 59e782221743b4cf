//! Tests of the accessors that `parse` does not use. The results are compared with `etherparse`.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

use super::*;
use crate::{Extension, Ipv4, Udp, oracle};

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn ip_views_agree(frame in frame()) {
        let Ok(sliced) = SlicedPacket::from_ethernet(&frame) else { return Ok(()) };
        let Some(net) = sliced.net.as_ref() else { return Ok(()) };
        match net {
            NetSlice::Ipv4(theirs) => {
                let l3 = theirs.header().slice().as_ptr() as usize - frame.as_ptr() as usize;
                let ours = Ipv4::parse(&frame[l3..]).unwrap();
                let header = &frame[l3..l3 + ours.header_len()];
                prop_assert_eq!((header, ours.options()), (theirs.header().slice(), theirs.header().options()));
                prop_assert_eq!(ours.id(), theirs.header().identification());
                prop_assert_eq!(ours.checksum_ok(), oracle::checksum(header) == 0);
                let mut right = header.to_vec();
                [right[10], right[11], right[2], right[3]] = [0, 0, 0, u8::try_from(header.len()).unwrap()];
                let sum = oracle::checksum(&right).to_be_bytes();
                right[10..12].copy_from_slice(&sum);
                prop_assert!(Ipv4::parse(&right).unwrap().checksum_ok());
            }
            NetSlice::Ipv6(theirs) => {
                let l3 = theirs.header().slice().as_ptr() as usize - frame.as_ptr() as usize;
                let ours = Ipv6::parse(&frame[l3..]).unwrap();
                let chain: Vec<Extension<'_>> = ours.extensions().map_while(Result::ok).collect();
                let bytes: Vec<u8> = chain.iter().flat_map(|e| e.bytes.iter().copied()).collect();
                prop_assert!(theirs.extensions().slice().starts_with(&bytes));
                let kinds = std::iter::once(ours.next_header()).chain(chain.iter().map(|e| e.next));
                prop_assert!(chain.iter().map(|e| e.kind).eq(kinds.take(chain.len())));
            }
            NetSlice::Arp(_) => {}
        }
    }

    #[test]
    fn udp_views_agree(frame in frame()) {
        let Ok(sliced) = SlicedPacket::from_ethernet(&frame) else { return Ok(()) };
        if let Some(TransportSlice::Udp(theirs)) = &sliced.transport {
            let ours = Udp::parse(theirs.slice()).unwrap();
            prop_assert_eq!((ours.checksum(), ours.payload()), (theirs.checksum(), theirs.payload()));
        }
    }
}

#[test]
fn extensions_iterator_ends_after_the_first_error() {
    let frame = udp_v6(60, &[0, 0, 0, 0, 0, 0, 0, 0]);
    let items: Vec<_> = Ipv6::parse(&frame[14..]).unwrap().extensions().collect();
    assert!(matches!(items[..], [Ok(Extension { kind: 60, next: 0, .. }), Err(Malformed::ExtensionChain)]));
}
