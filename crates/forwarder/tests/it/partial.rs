//! Tests that partial checksums are detected. The pipeline examines one packet per second, reports
//! after three partial checksums in a row, and forwards the packets unchanged.

use forwarder::*;

use crate::bed::*;

/// Writes the partial checksum that a kernel writes for hardware offload: the sum of the
/// pseudo-header, not complemented. The code is independent of the product code.
fn partial(mut frame: Vec<u8>) -> Vec<u8> {
    let (addresses, l4, protocol) = match frame[12..14] {
        [0x08, 0x00] => (26..34, 34, frame[23]),
        _ => (22..54, 54, frame[20]),
    };
    let length = frame.len() - l4;
    let words = frame[addresses].chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(word[1]));
    let sum = words.sum::<u64>() + u64::from(protocol) + length as u64;
    let at = l4 + if protocol == 6 { 16 } else { 6 };
    frame[at..at + 2].copy_from_slice(&((sum % 0xffff) as u16).to_be_bytes());
    frame
}

#[test]
fn partial_checksums_are_told_of_and_whole_ones_are_not() {
    let (sink, mut notices) = notice_ring(8);
    let mut parts = parts(gre_slots(2), &[1, 1]);
    parts.bindings.push(binding(VIP4, 132, 443..=443, 0));
    let mut bed = Bed::new(parts).with_notices(sink);
    let whole = [
        tcp("198.51.100.7", 9, VIP4, 80, "S"),
        udp("198.51.100.7", 9, VIP4, 443, b"x"),
        tcp("2001:db8:9::7", 9, VIP6, 80, "S"),
        udp("2001:db8:9::7", 9, VIP6, 443, b"x"),
    ];
    for frame in &whole {
        let partial = partial(frame.clone());
        for (frames, reported) in [
            ([&partial, &partial, frame, &partial, &partial], 0),
            ([frame; 5], 0),
            ([&partial, &partial, &partial, frame, frame], 1),
        ] {
            for frame in frames {
                assert_eq!(bed.send(24, frame).0, Verdict::Tx);
                // Only one packet per second is examined.
                assert_eq!(bed.send(24, &partial).0, Verdict::Tx);
                bed.advance(1);
            }
            assert_eq!(bed.send(24, frame).0, Verdict::Tx);
            bed.advance(1);
            let expected = Some(Notice::PartialChecksum { interface: InterfaceId(0) });
            let got: Vec<_> = std::iter::from_fn(|| notices.next()).collect();
            assert_eq!(got, Vec::from_iter(expected.filter(|_| reported == 1)));
        }
    }
    // Linux leaves the checksum of SCTP at 0.
    let mut init = crate::ports::packet("198.51.100.7", VIP4, 132, &crate::ports::sctp_init((9, 443), b"x"));
    for (is_partial, reported) in [(false, 0), (true, 1)] {
        if is_partial {
            init[42..46].fill(0);
        }
        for _ in 0..3 {
            assert_eq!(bed.send(24, &init).0, Verdict::Tx);
            bed.advance(1);
        }
        assert_eq!(std::iter::from_fn(|| notices.next()).count(), reported);
    }
    // This UDP datagram has no checksum.
    let mut none = udp("198.51.100.7", 9, VIP4, 443, b"x");
    none[40..42].fill(0);
    for _ in 0..4 {
        assert_eq!(bed.send(24, &none).0, Verdict::Tx);
        bed.advance(1);
    }
    assert_eq!(notices.next(), None);
}
