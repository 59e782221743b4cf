//! Random frames for tests. The frames are built byte by byte, without the code under test.

use proptest::collection::vec;
use proptest::prelude::*;

/// Generates valid frames with up to two VLAN tags. The frames may be fragments, and may have
/// options, extension headers and padding.
pub(crate) fn frame() -> impl Strategy<Value = Vec<u8>> {
    (any::<[u8; 12]>(), vec(tag(), 0..=2), any::<bool>(), upper(), padding()).prop_flat_map(
        |(macs, tags, v6, upper, padding)| {
            let ip = if v6 { ipv6(upper).boxed() } else { ipv4(upper).boxed() };
            ip.prop_map(move |ip| {
                let mut frame = macs.to_vec();
                tags.iter().for_each(|tag| frame.extend(tag));
                frame.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
                frame.extend(ip);
                frame.extend(&padding);
                frame
            })
        },
    )
}

/// Generates frames in which up to three bytes are replaced. Some frames are also truncated.
pub(crate) fn damaged_frame() -> impl Strategy<Value = Vec<u8>> {
    // The damage is limited to the first 120 bytes, which contain the headers.
    let flips = vec((0..120usize, any::<u8>()), 0..=3);
    (frame(), flips, prop::option::of(any::<prop::sample::Index>())).prop_map(|(mut frame, flips, cut)| {
        let len = frame.len();
        for (at, byte) in flips {
            frame[at % len] = byte;
        }
        if let Some(cut) = cut {
            frame.truncate(cut.index(len + 1));
        }
        frame
    })
}

fn tag() -> impl Strategy<Value = Vec<u8>> {
    (prop_oneof![Just(0x81u8), Just(0x88)], any::<[u8; 2]>()).prop_map(|(kind, [hi, lo])| {
        let low = if kind == 0x81 { 0 } else { 0xa8 };
        vec![kind, low, hi, lo]
    })
}

fn padding() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..20)
}

/// Generates a protocol number and the bytes of an upper layer.
fn upper() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let tcp = (any::<[u8; 12]>(), 5..=15u8, any::<[u8; 7]>(), vec(any::<u8>(), 0..40)).prop_map(
        |(start, words, end, data)| {
            let mut tcp = start.to_vec();
            tcp.push(words << 4);
            tcp.extend(end);
            tcp.extend(vec![1; usize::from(words) * 4 - 20]);
            tcp.extend(data);
            (6, tcp)
        },
    );
    let udp = (any::<[u8; 4]>(), vec(any::<u8>(), 0..40), any::<[u8; 2]>()).prop_map(|(ports, data, sum)| {
        let len = u16::try_from(8 + data.len()).unwrap().to_be_bytes();
        (17, [&ports[..], &len, &sum, &data].concat())
    });
    let other =
        prop_oneof![Just(1u8), Just(58), Just(33), Just(132), Just(136), Just(47), Just(59), Just(51)];
    prop_oneof![3 => tcp, 2 => udp, 2 => (other, vec(any::<u8>(), 0..60))]
}

/// Generates the 16-bit word with DF, MF and the fragment offset. Most values belong to an
/// unfragmented packet.
fn fragment_word() -> impl Strategy<Value = u16> {
    prop_oneof![4 => Just(0u16), 2 => Just(0x4000), 1 => Just(0x2000), 1 => any::<u16>()]
}

fn ipv4((protocol, upper): (u8, Vec<u8>)) -> impl Strategy<Value = Vec<u8>> {
    let ah = prop_oneof![4 => Just(None), 1 => vec(any::<u8>(), 12..=12).prop_map(Some)];
    (0..=10u8, any::<u8>(), any::<u16>(), fragment_word(), any::<u8>(), ah, any::<[u8; 10]>()).prop_map(
        move |(words, tos, id, fragment, ttl, ah, tail)| {
            let mut payload = Vec::new();
            let mut next = protocol;
            if let Some(mut ah) = ah {
                (ah[0], ah[1], next) = (protocol, 1, 51);
                payload = ah;
            }
            payload.extend(&upper);
            let total = u16::try_from(20 + usize::from(words) * 4 + payload.len()).unwrap();
            let mut ip = vec![0x45 + words, tos];
            for word in [total, id, fragment] {
                ip.extend(word.to_be_bytes());
            }
            ip.extend([ttl, next]);
            ip.extend(tail);
            ip.extend(vec![1; usize::from(words) * 4]);
            ip.extend(payload);
            ip
        },
    )
}

fn ipv6((protocol, upper): (u8, Vec<u8>)) -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![Just(0u8), Just(43), Just(44), Just(51), Just(60)];
    let lens = prop_oneof![3 => Just(0..=0usize), 3 => Just(1..=3), 1 => Just(4..=10)];
    let extensions =
        lens.prop_flat_map(move |lens| vec((kind.clone(), 0..3u8, fragment_word(), any::<u32>()), lens));
    (any::<[u8; 4]>(), any::<u8>(), any::<[u8; 32]>(), extensions).prop_map(
        move |([a, b, c, d], hops, addresses, extensions)| {
            let mut next = protocol;
            let mut payload = upper.clone();
            for (kind, size, fragment, id) in extensions.into_iter().rev() {
                let header = extension(kind, next, size, fragment, id);
                payload.splice(0..0, header);
                next = kind;
            }
            let mut ip = vec![0x60 | a & 0x0f, b, c, d];
            ip.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
            ip.extend([next, hops]);
            ip.extend(addresses);
            ip.extend(payload);
            ip
        },
    )
}

fn extension(kind: u8, next: u8, size: u8, fragment: u16, id: u32) -> Vec<u8> {
    let mut header = vec![next];
    match kind {
        44 => {
            header.push(0);
            header.extend((fragment << 3 | fragment >> 13 & 1).to_be_bytes());
            header.extend(id.to_be_bytes());
        }
        51 => {
            header.push(1 + size);
            header.resize(usize::from(size + 3) * 4, 7);
        }
        _ => {
            header.push(size);
            header.resize(usize::from(size + 1) * 8, 7);
        }
    }
    header
}
