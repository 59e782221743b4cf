use proptest::prelude::*;

use super::*;

type Options = Vec<(u16, Vec<u8>)>;
/// Interface, time, captured bytes, original length, and options.
type FoundPacket = (u32, u64, Vec<u8>, u32, Options);

/// The content of a file, read by a simple reader that follows the draft and processes one byte at
/// a time.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    kinds: Vec<u32>,
    names: Vec<String>,
    packets: Vec<FoundPacket>,
    statistics: Vec<(u32, u64, Options)>,
}

struct Slow<'a>(std::iter::Copied<std::slice::Iter<'a, u8>>);

impl Slow<'_> {
    fn number(&mut self, bytes: u32) -> u64 {
        (0..bytes).map(|place| u64::from(self.0.next().unwrap()) * 256u64.pow(place)).sum()
    }

    fn text(&mut self, bytes: u64) -> Vec<u8> {
        let taken = (0..bytes).map(|_| self.0.next().unwrap()).collect();
        for _ in 0..(4 - bytes % 4) % 4 {
            assert_eq!(self.0.next(), Some(0), "padding");
        }
        taken
    }

    fn options(&mut self) -> Options {
        let mut options = Vec::new();
        loop {
            let (code, long) = (self.number(2), self.number(2));
            if code == 0 {
                assert_eq!(long, 0);
                return options;
            }
            options.push((u16::try_from(code).unwrap(), self.text(long)));
        }
    }

    fn is_over(&self) -> bool {
        self.0.len() == 0
    }
}

fn read(file: &[u8]) -> Found {
    let mut found = Found::default();
    let mut slow = Slow(file.iter().copied());
    while !slow.is_over() {
        let before = slow.0.len() as u64;
        let (kind, whole) = (slow.number(4), slow.number(4));
        found.kinds.push(u32::try_from(kind).unwrap());
        match kind {
            0x0a0d_0d0a => {
                assert_eq!((slow.number(4), slow.number(2), slow.number(2)), (0x1a2b_3c4d, 1, 0));
                assert_eq!(slow.number(8), u64::MAX);
                slow.options();
            }
            1 => {
                assert_eq!((slow.number(2), slow.number(2)), (1, 0));
                slow.number(4);
                let options = slow.options();
                assert!(options.contains(&(9, vec![9])), "nanoseconds");
                let name = options.into_iter().find(|(code, _)| *code == 2).unwrap().1;
                found.names.push(String::from_utf8(name).unwrap());
            }
            6 => {
                let interface = u32::try_from(slow.number(4)).unwrap();
                let nanos = slow.number(4) * (1 << 32) + slow.number(4);
                let (kept, length) = (slow.number(4), slow.number(4));
                let bytes = slow.text(kept);
                let options = slow.options();
                found.packets.push((interface, nanos, bytes, u32::try_from(length).unwrap(), options));
            }
            5 => {
                let interface = u32::try_from(slow.number(4)).unwrap();
                let nanos = slow.number(4) * (1 << 32) + slow.number(4);
                let options = slow.options();
                found.statistics.push((interface, nanos, options));
            }
            other => panic!("block {other}"),
        }
        assert_eq!(slow.number(4), whole);
        assert_eq!(before - slow.0.len() as u64, whole);
    }
    found
}

const TWO: [Interface; 2] = [
    Interface { name: "before", description: "as it came" },
    Interface { name: "after", description: "as it left" },
];

type Given = (bool, u64, Vec<u8>, u16, String);

fn file(packets: &[Given], counted: &Statistics) -> Vec<u8> {
    let mut out = Vec::new();
    begin(&mut out, "what was asked for", &TWO, 256);
    for (number, (outbound, nanos, bytes, more, comment)) in (0..).zip(packets) {
        packet(
            &mut out,
            &Packet {
                interface: u32::from(*outbound),
                nanos: *nanos,
                bytes,
                whole: bytes.len() + usize::from(*more),
                id: number,
                outbound: *outbound,
                comment,
            },
        );
    }
    statistics(&mut out, 0, counted);
    out
}

fn given() -> impl Strategy<Value = Vec<Given>> {
    let bytes = prop::collection::vec(any::<u8>(), 0..300);
    prop::collection::vec((any::<bool>(), any::<u64>(), bytes, any::<u16>(), ".{0,80}"), 0..12)
}

proptest! {
    #[test]
    fn a_reference_reader_finds_what_was_written(packets in given(), numbers in any::<[u64; 4]>()) {
        let [nanos, accepted, dropped, delivered] = numbers;
        let counted = Statistics { nanos, accepted, dropped, delivered };
        let found = read(&file(&packets, &counted));
        prop_assert_eq!(&found.names, &["before", "after"]);
        prop_assert_eq!(found.packets.len(), packets.len());
        for (number, ((outbound, nanos, bytes, more, comment), packet)) in packets.iter().zip(&found.packets).enumerate() {
            let direction = if *outbound { vec![2, 0, 0, 0] } else { vec![1, 0, 0, 0] };
            let options = vec![
                (1, comment.clone().into_bytes()),
                (2, direction),
                (5, (number as u64).to_le_bytes().to_vec()),
            ];
            let whole = u32::try_from(bytes.len()).unwrap() + u32::from(*more);
            prop_assert_eq!(packet, &(u32::from(*outbound), *nanos, bytes.clone(), whole, options));
        }
        let (interface, at, options) = &found.statistics[0];
        prop_assert_eq!((*interface, *at, options.len()), (0, nanos, 4));
        for (place, code, number) in [(1, 5, dropped), (2, 6, accepted), (3, 8, delivered)] {
            prop_assert_eq!(&options[place], &(code, number.to_le_bytes().to_vec()));
        }
    }

    #[test]
    fn a_split_stream_is_written_in_complete_blocks(packets in given(), cuts in prop::collection::vec(1..90usize, 1..9), lost in any::<u64>()) {
        let counted = Statistics { nanos: 5 << 40 | 7, accepted: 9, dropped: lost, delivered: 3 };
        let file = file(&packets, &counted);
        let (mut blocks, mut written, mut rest, mut cuts) = (Blocks::default(), Vec::new(), &file[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (piece, more) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            rest = more;
            blocks.take(piece, |bytes| written.extend(bytes)).unwrap();
            read(&written);
        }
        prop_assert_eq!(&written, &file);
        let before = packets.iter().filter(|(outbound, ..)| !outbound).count();
        prop_assert_eq!((blocks.packets, blocks.statistics), (before as u64, Some(counted)));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut blocks = Blocks::default();
        let mut written = 0;
        let _ = blocks.take(&bytes, |whole| written = whole.len());
        prop_assert!(written <= bytes.len());
    }
}

#[test]
fn a_block_with_an_invalid_length_is_rejected() {
    for length in [0u32, 8, 13, 1 << 20] {
        let bytes = [[6, 0, 0, 0], length.to_le_bytes()].concat();
        assert_eq!(Blocks::default().take(&bytes, |_| ()), Err(NotBlocks), "{length}");
    }
}
