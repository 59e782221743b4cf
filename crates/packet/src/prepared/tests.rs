use core::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::{Encapsulation, Family, Mac, Outer, rewrite_link};

fn template() -> impl Strategy<Value = Option<Template>> {
    let kind = prop_oneof![
        Just(Encapsulation::Gre),
        Just(Encapsulation::Ipip),
        Just(Encapsulation::Gue { udp_checksum: false }),
        Just(Encapsulation::L2),
    ];
    let outer = (any::<bool>(), any::<[u8; 32]>()).prop_map(|(v4, bytes)| {
        let v6 = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap());
        let v4_at = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap());
        if v4 {
            Outer::V4 { source: v4_at(0), destination: v4_at(4) }
        } else {
            Outer::V6 { source: v6(0), destination: v6(16) }
        }
    });
    let inner = prop_oneof![Just(Family::V4), Just(Family::V6)];
    (kind, outer, inner, any::<bool>(), any::<bool>()).prop_map(|(kind, outer, inner, df, none)| {
        (!none || kind != Encapsulation::L2).then(|| Template::new(kind, outer, inner, df))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    /// The frame may have VLAN tags, and any number of bytes may follow the headers.
    #[test]
    fn prepared_write_matches_rewrite_link_and_template(
        template in template(),
        macs in any::<[u8; 12]>(),
        tags in prop_oneof![Just(0_usize), Just(4), Just(8)],
        old in prop::collection::vec(any::<u8>(), 150..=150),
        (inner_len, mtu) in prop_oneof![(0..1600_u16, 1400..1600_u16), (65_000..=u16::MAX, u16::MAX..=u16::MAX)],
        (tos, flow_hash, identification) in any::<(u8, u64, u16)>(),
    ) {
        let (dst, src) = macs.split_at(6);
        let ethertype = template.as_ref().map_or(0x86dd, Template::ethertype);
        let link = LinkHeader { dst: Mac(dst.try_into().unwrap()), src: Mac(src.try_into().unwrap()), ethertype };
        let prepared = Prepared::new(link, template.as_ref(), mtu, 7_u8);
        let overhead = template.as_ref().map_or(0, Template::len);
        let fits = usize::from(inner_len) + overhead <= usize::from(mtu);
        prop_assert_eq!(prepared.overhead(inner_len), fits.then_some(overhead));
        prop_assert_eq!(prepared.beside, 7);
        let inner = Inner { len: inner_len, tos, flow_hash, identification };
        let link_len = 14 + tags;
        let mut expected = old.clone();
        prop_assert!(rewrite_link(&mut expected, overhead, link_len, link));
        if let Some(template) = &template {
            if !fits {
                return Ok(());
            }
            template.write(&mut expected[link_len..link_len + overhead], &inner).expect("it fits");
        }
        let mut found = old.clone();
        let written = match tags {
            0 => prepared.write(&mut found, &inner),
            _ => prepared.write_tagged(&mut found, overhead, u16::try_from(link_len).unwrap(), &inner),
        };
        prop_assert!(written);
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn prepared_write_rejects_short_buffers(template in template(), len in 0..70_usize, tags in 0..3_usize) {
        let link = LinkHeader { dst: Mac([1; 6]), src: Mac([2; 6]), ethertype: 0x0800 };
        let prepared = Prepared::new(link, template.as_ref(), 1500, ());
        let inner = Inner { len: 100, tos: 0, flow_hash: 1, identification: 2 };
        let needed = 14 + template.as_ref().map_or(0, Template::len);
        prop_assert_eq!(prepared.write(&mut vec![0; len], &inner), len >= needed);
        let tagged = prepared.write_tagged(&mut vec![0; len], 0, u16::try_from(14 + 4 * tags).unwrap(), &inner);
        prop_assert_eq!(tagged, tags > 0 && len >= needed + 4 * tags);
    }
}

#[test]
fn prepared_new_rejects_templates_that_need_the_packet() {
    let outer = Outer::V4 { source: Ipv4Addr::new(192, 0, 2, 1), destination: Ipv4Addr::new(198, 18, 1, 1) };
    let gre = Template::new(Encapsulation::Gre, outer, Family::V4, true);
    let link = LinkHeader { dst: Mac([1; 6]), src: Mac([2; 6]), ethertype: 0x0800 };
    let laid_out = |template: &Template| Prepared::new(link, Some(template), 1500, ()).overhead(100);
    assert_eq!(laid_out(&gre), Some(24));
    let summed = Template::new(Encapsulation::Gue { udp_checksum: true }, outer, Family::V4, true);
    let prefixed = gre.with_source(Ipv4Addr::new(198, 51, 100, 0).into(), 28).unwrap();
    for template in [summed, prefixed, gre.to_cluster(8).unwrap()] {
        assert_eq!(laid_out(&template), None);
    }
    assert_eq!(Prepared::none(()).overhead(0), None);
}
