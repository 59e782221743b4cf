//! Tests that limiting times to live changes only the bytes of these times.

use proptest::prelude::*;

use crate::{Application, Datagram, Memcached, Request, ShortLife, Shortened};

use super::framed;

const MEMCACHED: Memcached = Memcached::new(32);
const NOW: u32 = 1_790_000_000;
const LIFE: ShortLife = ShortLife { seconds: 10, now: NOW };

fn shortened(payload: &[u8]) -> Option<Vec<u8>> {
    let ask = MEMCACHED.read(Datagram::whole(payload)).unwrap();
    let request = Request { payload, ask: &ask };
    let mut out = vec![0xee; payload.len() + 16];
    match MEMCACHED.shorten_life(&request, LIFE, &mut out) {
        Shortened::Unchanged => None,
        Shortened::To(length) => {
            // The request must not fit into a buffer that is one byte shorter.
            let tight = MEMCACHED.shorten_life(&request, LIFE, &mut out[..length]);
            assert_eq!(tight, Shortened::To(length));
            let short = MEMCACHED.shorten_life(&request, LIFE, &mut vec![0; length - 1]);
            assert_eq!(short, Shortened::NoRoom);
            MEMCACHED.read(Datagram::whole(&out[..length])).expect("the rewritten request must be valid");
            Some(out[..length].to_vec())
        }
        Shortened::NoRoom => panic!("16 extra bytes must suffice"),
    }
}

/// Returns how many seconds a value with this time to live is stored, according to `protocol.txt`.
fn lives(time: i64) -> i64 {
    match time {
        0 => i64::MAX,
        1..=2_592_000 => time,
        _ if time < 0 => 0,
        _ => time - i64::from(NOW),
    }
}

fn times() -> impl Strategy<Value = i64> {
    prop_oneof![
        Just(0),
        -5..30_i64,
        2_591_990..2_592_010_i64,
        i64::from(NOW) - 20..i64::from(NOW) + 20,
        0..i64::from(i32::MAX),
    ]
}

proptest! {
    // Promise: failover-expiry
    #[test]
    fn of_a_line_the_time_alone_changes(
        key in "[a-zA-Z0-9]{1,20}", time in times(), zeros in 0..3_usize, spaces in 1..3_usize,
        value in "[ -~]{0,40}", more in "( noreply)?", cas in 1..9999_u32,
    ) {
        let text = if time < 0 { time.to_string() } else { format!("{}{time}", "0".repeat(zeros)) };
        let (gap, length) = (" ".repeat(spaces), value.len());
        let plain = more.is_empty();
        let meta = |flags: String| flags.replace(" noreply", "");
        let rows: Vec<(String, String)> = vec![
            (format!("set {key}{gap}7 "), format!(" {length}{more}\r\n{value}\r\n")),
            (format!("add {key} 7{gap}"), format!("{gap}{length}{more}\r\n{value}\r\n")),
            (format!("replace {key} 7 "), format!(" {length}{more}\r\n{value}\r\n")),
            (format!("cas {key} 7 "), format!(" {length} {cas}{more}\r\n{value}\r\n")),
            (format!("touch {key} "), format!("{more}\r\n")),
            (format!("gat{gap}"), format!(" {key}\r\n")),
            ("gats ".into(), format!(" {key} {key}2 T0\r\n")),
            (format!("ms {key} {length} F7 T"), meta(format!(" q\r\n{value}\r\n"))),
            (format!("mg {key} t T"), meta(" v\r\n".into())),
            (format!("mg {key} N"), meta(" v\r\n".into())),
            (format!("ma {key} N"), meta(" J5\r\n".into())),
        ];
        for (front, behind) in rows {
            let payload = framed(format!("{front}{text}{behind}").as_bytes());
            let wanted = (lives(time) > 10).then(|| framed(format!("{front}10{behind}").as_bytes()));
            prop_assert_eq!(shortened(&payload), wanted, "{} {}", front, plain);
        }
    }

    #[test]
    fn of_a_binary_command_its_four_bytes_alone_change(
        key in "[a-z]{1,20}", time in times(), value in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let time = u32::try_from(time).unwrap_or(0);
        for (opcode, extras, at, has_value) in [
            (0x01, 8, 4, true), (0x02, 8, 4, true), (0x03, 8, 4, true), (0x11, 8, 4, true), (0x12, 8, 4, true),
            (0x13, 8, 4, true), (0x05, 20, 16, false), (0x06, 20, 16, false), (0x15, 20, 16, false),
            (0x16, 20, 16, false), (0x1c, 4, 0, false), (0x1d, 4, 0, false), (0x1e, 4, 0, false),
            (0x23, 4, 0, false), (0x24, 4, 0, false),
        ] {
            let with = |time: u32| {
                let value: &[u8] = if has_value { &value } else { &[] };
                let mut all = vec![0; extras];
                all[at..at + 4].copy_from_slice(&time.to_be_bytes());
                let [body, length, extras] = [extras + key.len() + value.len(), key.len(), extras]
                    .map(|count| u8::try_from(count).unwrap());
                let header = [0x80, opcode, 0, length, extras, 0, 0, 0, 0, 0, 0, body];
                framed(&[&header[..], &[0; 12], &all, key.as_bytes(), value].concat())
            };
            let wanted = (lives(time.into()) > 10).then(|| with(10));
            prop_assert_eq!(shortened(&with(time)), wanted, "{:x} {}", opcode, time);
            if extras == 20 {
                prop_assert_eq!(shortened(&with(u32::MAX)), None, "the command creates no item");
            }
        }
    }
}

#[test]
fn expiry_missing_time_is_added_and_all_times_are_cut() {
    let rows: [(&[u8], Option<&[u8]>); 15] = [
        (b"ms k 2\r\nab\r\n", Some(b"ms k 2 T10\r\nab\r\n")),
        (b"ms k 2 \r\nTt\r\n", Some(b"ms k 2  T10\r\nTt\r\n")),
        (b"ms T 2 I q\r\nab\r\n", Some(b"ms T 2 I q T10\r\nab\r\n")),
        (b"ms k 2 T5\r\nab\r\n", None),
        (b"mg k v N60 T90\r\n", Some(b"mg k v N10 T10\r\n")),
        (b"mg k v N60 T9\r\n", Some(b"mg k v N10 T9\r\n")),
        (b"mg T100 v\r\n", None),
        (b"get k\r\n", None),
        (b"delete k\r\n", None),
        (b"incr k 60\r\n", None),
        (b"append k 0 0 2\r\nab\r\n", None),
        (b"md k I T100\r\n", None),
        // A CR in a key or an opaque does not end the line.
        (b"set a\rb 0 100 2\r\nhi\r\n", Some(b"set a\rb 0 10 2\r\nhi\r\n")),
        (b"ms a\rb 2\r\nhi\r\n", Some(b"ms a\rb 2 T10\r\nhi\r\n")),
        (b"ms k 2 Oa\rb T100\r\nhi\r\n", Some(b"ms k 2 Oa\rb T10\r\nhi\r\n")),
    ];
    for (command, wanted) in rows {
        let wanted = wanted.map(framed);
        assert_eq!(shortened(&framed(command)), wanted, "{}", command.escape_ascii());
    }
}
