use proptest::prelude::*;

use super::*;

const DST: Mac = Mac([2, 0, 0, 0, 0, 0xaa]);
const SRC: Mac = Mac([2, 0, 0, 0, 0, 0xbb]);

#[test]
fn mac_address_parse_and_display_round_trip() {
    let text = "02:00:5e:10:00:ff";
    let mac: Mac = text.parse().unwrap();
    assert_eq!((mac, mac.to_string().as_str()), (Mac([2, 0, 0x5e, 0x10, 0, 0xff]), text));
    assert_eq!("02:00:5E:10:00:FF".parse(), Ok(mac));
    assert!(!mac.is_group() && Mac([0xff; 6]).is_group());
}

#[test]
fn mac_address_parse_rejects_invalid_text() {
    for text in [
        "",
        "02:00:5e:10:00",
        "02:00:5e:10:00:01:02",
        "2:0:5e:10:0:1",
        "02-00-5e-10-00-01",
        "02:00:5e:10:00:+1",
    ] {
        assert_eq!(text.parse::<Mac>(), Err(MacError), "{text}");
    }
    assert_eq!("é2:00:5e:10:00:0".parse::<Mac>(), Err(MacError));
}

fn header(ethertype: u16) -> LinkHeader {
    LinkHeader { dst: DST, src: SRC, ethertype }
}

#[test]
fn rewrite_link_moves_an_untagged_header_to_the_front() {
    let mut buf = [vec![9; 24], vec![1; 12], vec![0x08, 0x00, 0x45, 0x46]].concat();
    assert!(rewrite_link(&mut buf, 24, 14, header(0x86dd)));
    let link = [&DST.0[..], &SRC.0, &[0x86, 0xdd]].concat();
    assert_eq!(buf[..14], link);
    assert_eq!(buf[14..24], [9; 10]);
    assert_eq!(buf[38..], [0x45, 0x46]);
}

#[test]
fn rewrite_link_rejects_invalid_lengths_and_short_buffers() {
    for link_len in [0, 13, 15, 16, 20, 26, usize::MAX] {
        assert!(!rewrite_link(&mut [7; 64], 0, link_len, header(0x0800)));
    }
    for (link_len, from) in [(14usize, 0), (18, 4), (22, 24), (14, usize::MAX)] {
        let mut buf = vec![7; link_len.saturating_add(from).min(100) - 1];
        assert!(!rewrite_link(&mut buf, from, link_len, header(0x0800)));
        assert!(buf.iter().all(|&byte| byte == 7));
    }
}

proptest! {
    #[test]
    fn tags_survive_every_overlap(link: [u8; 22], tags in 0..3usize, from in 0..60usize, kind: u16) {
        let link_len = 14 + 4 * tags;
        let mut buf = vec![0xee; 90];
        buf[from..from + link_len].copy_from_slice(&link[..link_len]);
        let old = buf.clone();
        prop_assert!(rewrite_link(&mut buf, from, link_len, header(kind)));
        prop_assert_eq!(&buf[..6], &DST.0[..]);
        prop_assert_eq!(&buf[6..12], &SRC.0[..]);
        prop_assert_eq!(&buf[12..link_len - 2], &link[12..link_len - 2]);
        prop_assert_eq!(&buf[link_len - 2..link_len], &kind.to_be_bytes()[..]);
        prop_assert_eq!(&buf[link_len..], &old[link_len..]);
    }
}

fn tags() -> impl Strategy<Value = Tags> {
    let tag = (any::<bool>(), 0..=4094u16, 0..=7u8).prop_map(|(service, id, priority)| {
        if service { Tag::service(id, priority) } else { Tag::customer(id, priority) }.unwrap()
    });
    proptest::collection::vec(tag, 0..=2)
        .prop_map(|tags| tags.into_iter().rev().fold(Tags::NONE, |tags, tag| tags.push(tag).unwrap()))
}

proptest! {
    #[test]
    fn write_link_ends_at_the_given_offset(tags in tags(), end in 0..70usize, len in 0..80usize) {
        let mut buf = vec![0xee; len];
        let start = write_link(&mut buf, end, header(0x0800), &tags);
        if end < tags.link_len() || end > len {
            prop_assert_eq!(start, None);
            prop_assert_eq!(buf, vec![0xee; len]);
            return Ok(());
        }
        let start = start.unwrap();
        prop_assert_eq!(start, end - tags.link_len());
        prop_assert!(buf[..start].iter().chain(&buf[end..]).all(|&byte| byte == 0xee));
        let link = etherparse::Ethernet2Slice::from_slice_without_fcs(&buf[start..end]).unwrap();
        prop_assert_eq!((link.destination(), link.source()), (DST.0, SRC.0));
        let mut kind = u16::from(link.ether_type());
        let mut rest = &buf[start + 14..end];
        for tag in tags.outer().into_iter().chain(tags.inner()) {
            prop_assert_eq!(kind, if tag.is_service() { 0x88a8 } else { 0x8100 });
            let seen = etherparse::SingleVlanSlice::from_slice(rest).unwrap();
            prop_assert_eq!(seen.vlan_identifier().value(), tag.id());
            prop_assert_eq!(seen.priority_code_point().value(), tag.priority());
            (kind, rest) = (u16::from(seen.ether_type()), &rest[4..]);
        }
        prop_assert_eq!((kind, rest.len()), (0x0800, 0));
        prop_assert_eq!(Tags::read(&buf[start..end], u16::try_from(end - start).unwrap()), Some(tags));
    }
}
