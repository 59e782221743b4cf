//! Tests of requests that are split between servers. The tests cover the upstream requests, the
//! parsed answers, and the reply.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::reader::{self, Hit};
use super::server::{Kept, Server};
use super::{binary, framed};
use crate::{
    Answer, Application, Arrival, Ask, Content, Datagram, Gather, KeyRoom, Memcached, NoAnswer, Offset,
    OwnId, Place, Progress, Request, Stored, Value,
};

pub(super) const MEMCACHED: Memcached = Memcached::new(32);

/// The verbs of client requests for several keys.
pub(super) const VERBS: [&str; 5] = ["get", "gets", "gat 60", "gats -1", "batch"];
const NOOP: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];

/// Writes a client request for keys. The verb "batch" produces alternating binary GETQ and GETKQ
/// commands, followed by a NOOP. All other verbs produce text commands.
pub(super) fn asked(verb: &str, keys: &[&[u8]]) -> Vec<u8> {
    if verb != "batch" {
        return framed(&[verb.as_bytes(), b" ", &keys.join(&b' '), b"\r\n"].concat());
    }
    let quiet = keys.iter().zip([0x09, 0x0d].into_iter().cycle());
    let mut command: Vec<u8> = quiet.flat_map(|(key, opcode)| binary(opcode, b"", key, b"")).collect();
    command.extend(binary(0x0a, b"", b"", b""));
    framed(&command)
}

pub(super) fn read(payload: &[u8]) -> Ask {
    MEMCACHED.read(Datagram::whole(payload)).unwrap()
}

/// Writes one upstream request for all keys of a client request.
fn whole_part(payload: &[u8], own: OwnId) -> Vec<u8> {
    let ask = read(payload);
    let request = Request { payload, ask: &ask };
    let gather = Gather::new(&MEMCACHED, &request, &mut |_, _| Some(0)).unwrap();
    let mut out = [0; 16_384];
    let length = MEMCACHED.write_part(&request, &mut gather.part(0), own, &mut out).unwrap();
    out[..length].to_vec()
}

#[test]
fn parts_are_asked_by_commands_that_name_key_and_nonce() {
    let own = OwnId { request: 0xbeef, nonce: 0x00ab_cdef_0123_4567 };
    let frame = b"\xbe\xef\0\0\0\x01\0\0";
    for (verb, flags) in [("get", ""), ("gets", " c"), ("gat 60", " T60"), ("gats -1", " c T-1")] {
        let part = whole_part(&asked(verb, &[b"a", b"b\r", b"a"]), own);
        let command = |key| format!("mg {key} k f v O00abcdef01234567{flags}\r\n");
        assert_eq!(part, [frame, command("a").as_bytes(), command("b\r").as_bytes()].concat());
    }
    let part = whole_part(&asked("batch", &[b"a", b"bc"]), own);
    let mut wanted =
        [&frame[..], b"\x80\x0c\0\x01\0\0\0\0\0\0\0\x01\x01\x23\x45\x67\0\0\0\0\0\0\0\0a"].concat();
    wanted.extend(b"\x80\x0c\0\x02\0\0\0\0\0\0\0\x02\x01\x23\x45\x67\0\0\0\0\0\0\0\0bc");
    assert_eq!(part, wanted);
}

#[test]
fn what_is_never_asked_by_parts_is_refused() {
    let own = OwnId { request: 1, nonce: 2 };
    let commands: [Vec<u8>; 6] = [
        b"set k 0 0 1\r\nx\r\n".to_vec(),
        b"mg k v\r\n".to_vec(),
        b"mn\r\n".to_vec(),
        binary(0x00, b"", b"k", b""),
        binary(0x09, b"", b"k", b""),
        binary(0x0a, b"", b"", b""),
    ];
    for command in commands {
        let payload = framed(&command);
        let ask = read(&payload);
        let request = Request { payload: &payload, ask: &ask };
        let (mut out, found) = ([0; 2_048], |_| None);
        assert_eq!(MEMCACHED.write_part(&request, &mut [ask.first].into_iter(), own, &mut out), None);
        assert_eq!(MEMCACHED.reply_datagrams(&request, &found), None);
        assert_eq!(MEMCACHED.write_reply(&request, &found, 0, &mut out), None);
        let answer = MEMCACHED.read_answer(&request, own, &payload, &mut KeyRoom::default()).map(drop);
        assert_eq!(answer, Err(NoAnswer::NeverAsked));
    }
    let payload = asked("get", &[b"a"]);
    let (ask, offset) = (read(&payload), Offset::new(0, 1));
    let request = Request { payload: &payload, ask: &ask };
    let mut out = [0; 64];
    // the list of keys is empty
    assert_eq!(MEMCACHED.write_part(&request, &mut [].into_iter(), own, &mut out), None);
    assert_eq!(offset.write_part(&request, &mut [ask.first].into_iter(), own, &mut out), None);
    assert_eq!((offset.answer_id(&payload), MEMCACHED.answer_id(&payload)), (None, Some(0x1234)));
    assert_eq!(MEMCACHED.answer_id(&payload[..7]), None);
    assert_eq!(offset.reply_datagrams(&request, &|_| None), None);
    assert_eq!(offset.write_reply(&request, &|_| None, 0, &mut out), None);
    let answer = offset.read_answer(&request, own, &payload, &mut KeyRoom::default()).map(drop);
    assert_eq!(answer, Err(NoAnswer::NeverAsked));
}

#[test]
fn answers_say_key_and_content_or_are_none() {
    let value = |len, flags, cas| Content::Value(Value { start: 0, len, flags, cas });
    let check = |verb: &str, payload: &[u8], wanted: Result<(&[u8], Content), NoAnswer>| {
        let request = asked(verb, &[b"a", b"nok"]);
        let ask = read(&request);
        let (own, mut room) = (OwnId { request: 0x1234, nonce: 0x1_2345_6789 }, KeyRoom::default());
        let request = Request { payload: &request, ask: &ask };
        let answer = MEMCACHED.read_answer(&request, own, payload, &mut room);
        let wanted = wanted.map(|(key, mut content)| {
            if let Content::Value(value) = &mut content {
                let line = payload.iter().position(|&byte| byte == b'\n').unwrap();
                value.start = u16::try_from(line + 1).unwrap(); // a value follows its line
            }
            (key, content)
        });
        assert_eq!(
            answer,
            wanted.map(|(key, content)| Answer { key, content }),
            "{}",
            payload.escape_ascii()
        );
    };
    let get = |line: &[u8], wanted| check("get", &framed(line), wanted);
    let gets = |line: &[u8], wanted| check("gets", &framed(line), wanted);
    get(b"VA 3 ka f5 O0000000123456789\r\nA\r\n\r\n", Ok((b"a", value(3, 5, 0))));
    get(b"VA 0 f4294967295 kq O0000000123456789 W X\r\n\r\n", Ok((b"q", value(0, u32::MAX, 0))));
    get(b"VA 2 kaw== b f9 O0000000123456789 Z\r\nhi\r\n", Ok((b"k", value(2, 9, 0))));
    gets(b"VA 1 ka f0 O0000000123456789 c18446744073709551615\r\nx\r\n", Ok((b"a", value(1, 0, u64::MAX))));
    get(b"EN knok O0000000123456789\r\n", Ok((b"nok", Content::Missing)));
    // These answers do not contain the nonce of the request.
    for line in [
        &b"EN\r\n"[..],
        b"EN knok\r\n",
        b"EN knok O0000000123456788\r\n",
        b"EN knok O123456789\r\n",
        b"EN knok O000000012345678\x39\x20\r\n",
        b"EN knok O+000000123456789\r\n",
        b"VALUE a 5 3\r\nAAA\r\nEND\r\n",
        b"END\r\n",
        b"MN\r\n",
        b"ERROR\r\n",
        b"SERVER_ERROR out of memory writing get response\r\n",
    ] {
        let request = asked("get", &[b"a"]);
        let ask = read(&request);
        let (own, mut room) = (OwnId { request: 0x1234, nonce: 0x1_2345_6789 }, KeyRoom::default());
        let request = Request { payload: &request, ask: &ask };
        assert!(
            MEMCACHED.read_answer(&request, own, &framed(line), &mut room).is_err(),
            "{}",
            line.escape_ascii()
        );
    }
    let malformed = Err(NoAnswer::Malformed);
    get(b"VA 3 ka f5 O0000000123456789\r\nAAAA\r\n", malformed);
    get(b"VA 4 ka f5 O0000000123456789\r\nAAA\r\n", malformed);
    get(b"VA 3 ka f5 O0000000123456789\r\nAAA\r\r", malformed);
    get(b"VA 3 ka O0000000123456789\r\nAAA\r\n", malformed); // the answer has no client flags
    // The answer has a version that was not requested.
    get(b"VA 3 ka f5 c1 O0000000123456789\r\nAAA\r\n", malformed);
    // the answer lacks the requested version
    gets(b"VA 3 ka f5 O0000000123456789\r\nAAA\r\n", malformed);
    get(b"VA 3 f5 O0000000123456789\r\nAAA\r\n", malformed); // the answer has no key
    get(b"VA 3 k f5 O0000000123456789\r\nAAA\r\n", malformed);
    get(b"VA 3 ka ka f5 O0000000123456789\r\nAAA\r\n", malformed);
    get(b"VA 3 ka f5 O0000000123456789 t9\r\nAAA\r\n", malformed);
    get(b"VA 3 ka  f5 O0000000123456789\r\nAAA\r\n", malformed);
    get(b"VA -3 ka f5 O0000000123456789\r\nAAA\r\n", malformed);
    get(b"VA 3 ka f4294967296 O0000000123456789\r\nAAA\r\n", malformed);
    get(b"VA 3 kaw= b f5 O0000000123456789\r\nAAA\r\n", malformed);
    get(b"EN knok O0000000123456789\r\nEN knok O0000000123456789\r\n", malformed);
    get(b"EN knok O0000000123456789\n", malformed);
    get(format!("EN k{} O0000000123456789\r\n", "k".repeat(251)).as_bytes(), malformed);
    // These answers have wrong frames.
    check("get", b"\x12\x34\0\0\0\x01\0", malformed);
    check("get", b"\x12\x35\0\0\0\x01\0\0EN knok O0000000123456789\r\n", Err(NoAnswer::OtherRequest));
    check("get", b"\x12\x34\0\0\0\0\0\0", Err(NoAnswer::OtherNonce));
    check("get", b"\x12\x34\0\x01\0\x02\0\0EN knok O0000000123456789\r\n", Err(NoAnswer::Continuation));
    check("get", b"\x12\x34\0\0\0\x02\0\0VA 9 ka f5 O0000000123456789\r\nAAA", Ok((b"a", Content::TooLong)));
    check("get", b"\x12\x34\0\0\0\x02\0\0VA 3 ka f5 O0000000123456789\r\nAAA\r\n", malformed);
    check("get", b"\x12\x34\0\0\0\x02\0\0EN knok O0000000123456789\r\n", malformed);
}

/// Writes a binary answer with an opcode, a status, an opaque, and a body that consists of extras,
/// key and value.
fn said(opcode: u8, status: u8, opaque: &[u8; 4], parts: [&[u8]; 3]) -> Vec<u8> {
    let [extras, key, value] = parts;
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
    let body = length(extras) + length(key) + length(value);
    let header = [0x81, opcode, 0, length(key), length(extras), 0, 0, status, 0, 0, 0, body];
    framed(&[&header, &opaque[..], &[0, 0, 0, 0, 0, 0, 0, 7], extras, key, value].concat())
}

#[test]
fn binary_answers_say_key_and_content_or_are_none() {
    let check = |payload: &[u8], wanted: Result<(&[u8], Content), NoAnswer>| {
        let request = asked("batch", &[b"a", b"nok"]);
        let ask = read(&request);
        let (own, mut room) = (OwnId { request: 0x1234, nonce: 0x1_2345_6789 }, KeyRoom::default());
        let answer =
            MEMCACHED.read_answer(&Request { payload: &request, ask: &ask }, own, payload, &mut room);
        assert_eq!(
            answer,
            wanted.map(|(key, content)| Answer { key, content }),
            "{}",
            payload.escape_ascii()
        );
    };
    let (opaque, flags) = (b"\x23\x45\x67\x89", b"\0\0\0\x05");
    let value = Content::Value(Value { start: 37, len: 3, flags: 5, cas: 7 });
    check(&said(0x0c, 0, opaque, [flags, b"a", b"AAA"]), Ok((b"a", value)));
    check(&said(0x0c, 1, opaque, [b"", b"nok", b""]), Ok((b"nok", Content::Missing)));
    let malformed = Err(NoAnswer::Malformed);
    // The answer contains no key, like an answer to GET.
    check(&said(0x0c, 1, opaque, [b"", b"", b"Not found"]), malformed);
    check(&said(0x0c, 1, opaque, [b"", b"nok", b"x"]), malformed);
    check(&said(0x0c, 0x82, opaque, [b"", b"", b"Out of memory"]), malformed);
    check(&said(0x0c, 0, opaque, [b"", b"a", b"AAA"]), malformed);
    check(&said(0x0c, 0, opaque, [flags, b"", b"AAA"]), malformed);
    check(&said(0x0c, 0, b"\x23\x45\x67\x88", [flags, b"a", b"AAA"]), Err(NoAnswer::OtherNonce));
    check(&said(0x0d, 0, opaque, [flags, b"a", b"AAA"]), Err(NoAnswer::OtherNonce));
    check(&said(0x0a, 0, opaque, [b"", b"", b""]), Err(NoAnswer::OtherNonce));
    let long = said(0x0c, 0, opaque, [flags, b"a", b"AAA"]);
    check(&long[..long.len() - 1], malformed);
    check(&[&long[..], b"x"].concat(), malformed);
    check(&long[..20], malformed);
    let mut first = long[..long.len() - 1].to_vec();
    first[5] = 2; // the first of two datagrams
    check(&first, Ok((b"a", Content::TooLong)));
    check(b"\x12\x34\0\0\0\x01\0\0EN knok O0000000123456789\r\n", Err(NoAnswer::OtherNonce));
}

/// A client request, the contents of the servers, and the order in which their answers arrive.
#[derive(Clone, Debug)]
struct Case {
    verb: &'static str,
    keys: Vec<usize>,
    kept: Vec<Option<Kept>>,
    servers: usize,
    order: Vec<Index>,
}

/// The keys that generated requests contain.
const NAMES: [&[u8]; 8] = [b"a", b"b", b"user:17", b"\x01\xff\r", b"mg", b"END", b"VALUE", &[b'k'; 250]];

fn kept() -> impl Strategy<Value = Kept> {
    let value = prop_oneof![
        4 => vec(any::<u8>(), 0..20),
        4 => vec(prop::sample::select(b"\r\nEND VALUE a".to_vec()), 0..40),
        2 => vec(any::<u8>(), 700..1_050),
        1 => vec(any::<u8>(), 1_370..1_500),
    ];
    (any::<u32>(), any::<u64>(), value, any::<bool>()).prop_map(|(flags, cas, value, is_base64)| Kept {
        flags,
        cas,
        value,
        is_base64,
    })
}

fn case() -> impl Strategy<Value = Case> {
    let verb = prop::sample::select(VERBS.to_vec());
    let keys = vec(0..NAMES.len(), 1..=32);
    (
        verb,
        keys,
        vec(prop::option::weighted(0.7, kept()), NAMES.len()),
        1..5_usize,
        vec(any::<Index>(), 0..60),
    )
        .prop_map(|(verb, keys, mut kept, servers, order)| {
            // A key of 250 letters cannot be the base64 form of a key.
            kept.iter_mut()
                .flatten()
                .last()
                .unwrap_or(&mut Kept { flags: 0, cas: 0, value: Vec::new(), is_base64: false })
                .is_base64 = false;
            Case { verb, keys, kept, servers, order }
        })
}

impl Case {
    fn server(&self) -> Server {
        let kept =
            NAMES.iter().zip(&self.kept).filter_map(|(name, kept)| Some((name.to_vec(), kept.clone()?)));
        Server(kept.collect())
    }

    /// Returns the values that the client must receive, or `None` if a value is too long for one
    /// datagram.
    fn wanted(&self) -> Vec<Hit> {
        let hits = self.keys.iter().enumerate().filter_map(|(number, &key)| {
            let kept = self.kept[key].as_ref()?;
            let (is_batch, has_cas) = (self.verb == "batch", self.verb.contains("ts"));
            let has_key = !is_batch || number % 2 == 1;
            Some(Hit {
                key: if has_key { NAMES[key].to_vec() } else { Vec::new() },
                flags: kept.flags,
                cas: if is_batch || has_cas { kept.cas } else { 0 },
                value: kept.value.clone(),
                opaque: if is_batch { NOOP } else { [0; 4] },
            })
        });
        hits.collect()
    }
}

/// Writes all datagrams of a reply.
pub(super) fn reply<'a>(request: &Request<'_>, found: &dyn Fn(u16) -> Option<Stored<'a>>) -> Vec<Vec<u8>> {
    let total = MEMCACHED.reply_datagrams(request, found).unwrap();
    let mut out = [0; 1_400];
    assert_eq!(MEMCACHED.write_reply(request, found, total, &mut out), None);
    (0..total)
        .map(|number| {
            let length = MEMCACHED.write_reply(request, found, number, &mut out).unwrap();
            // The output buffer is one byte too short.
            assert_eq!(MEMCACHED.write_reply(request, found, number, &mut vec![0; length - 1]), None);
            let mut just = vec![0; length];
            assert_eq!(MEMCACHED.write_reply(request, found, number, &mut just), Some(length));
            assert_eq!(just, out[..length]);
            just
        })
        .collect()
}

/// Sends the upstream requests, applies the answers in the order of the case, and checks the reply.
/// Some answers are applied twice.
fn gathered(case: &Case) {
    let names: Vec<&[u8]> = case.keys.iter().map(|&key| NAMES[key]).collect();
    let payload = asked(case.verb, &names);
    let (ask, server) = (read(&payload), case.server());
    let request = Request { payload: &payload, ask: &ask };
    let part_of = |key: &[u8]| {
        u8::try_from(key.iter().map(|&byte| usize::from(byte)).sum::<usize>() % case.servers).unwrap()
    };
    let mut gather = Gather::new(&MEMCACHED, &request, &mut |_, key| Some(part_of(key))).unwrap();
    let own = |part: u8| OwnId {
        request: 100 + u16::from(part),
        nonce: 0x0123_4567_89ab_cdef ^ u64::from(part) << 20,
    };
    let mut answers: Vec<(u8, Vec<u8>)> = Vec::new();
    for part in (0..4).filter(|&part| gather.waits_for(part)) {
        let mut out = vec![0; 16_384];
        let length = MEMCACHED.write_part(&request, &mut gather.part(part), own(part), &mut out).unwrap();
        let short = &mut vec![0; length - 1];
        assert_eq!(MEMCACHED.write_part(&request, &mut gather.part(part), own(part), short), None);
        answers.extend(server.answer(&out[..length]).into_iter().flatten().map(|datagram| (part, datagram)));
    }
    let is_too_long = answers.iter().any(|(_, datagram)| datagram[4..6] != [0, 1]);
    // Applies the answers in any order, some of them twice. At the end, applies all answers again.
    let mut arriving: Vec<usize> = case.order.iter().map(|index| index.index(answers.len())).collect();
    arriving.extend(0..answers.len());
    let mut last = Progress::Unchanged;
    let mut seen = HashMap::new();
    for number in arriving {
        let (part, datagram) = &answers[number];
        let mut room = KeyRoom::default();
        let Ok(answer) = MEMCACHED.read_answer(&request, own(*part), datagram, &mut room) else {
            assert_ne!(datagram[2..4], [0, 0], "refused: {}", datagram.escape_ascii());
            continue;
        };
        let frame = u32::try_from(number).unwrap();
        let progress = gather.answer(&MEMCACHED, &request, &Arrival { part: *part, frame, answer });
        let again = seen.insert(number, ()).is_some();
        assert!(!again || progress == Progress::Unchanged, "an answer was counted twice");
        if progress != Progress::Unchanged {
            last = progress;
        }
    }
    assert_eq!(last, if is_too_long { Progress::Failed } else { Progress::Complete });
    if is_too_long {
        return;
    }
    let found = |key| {
        gather
            .place(key)
            .map(|Place { frame, value }| value.within(&answers[usize::try_from(frame).unwrap()].1))
    };
    let bytes = reader::joined([0x12, 0x34], &reply(&request, &found));
    let hits = match case.verb {
        "batch" => reader::batch(&bytes, NOOP),
        verb => reader::text(&bytes, verb.contains("ts")),
    };
    let mut frames: Vec<u32> = gather.frames().collect();
    frames.sort_unstable();
    frames.dedup();
    assert_eq!(frames.len(), gather.frames().count());
    let mut wanted = case.wanted();
    // A key that occurs twice in a text request is answered twice. The reply contains versions only
    // if the client requested them.
    if case.verb != "batch" && !case.verb.contains("ts") {
        wanted.iter_mut().for_each(|hit| hit.cas = 0);
    }
    assert_eq!(hits, wanted);
}

proptest! {
    #[test]
    fn gathered_reply_has_all_values_in_request_order(case in case()) {
        gathered(&case);
    }

    #[test]
    fn a_damaged_answer_is_none_or_carries_id_nonce_and_key(
        verb in prop::sample::select(VERBS.to_vec()), kept in prop::option::of(kept()),
        damage in vec((any::<Index>(), any::<u8>()), 0..4), cut in prop::option::of(any::<Index>()), tail in vec(any::<u8>(), 0..3),
    ) {
        let payload = asked(verb, &[b"ab", b"cd"]);
        let own = OwnId { request: 0x0102, nonce: 0xfedc_ba98_7654_3210 };
        let server = Server(kept.into_iter().map(|kept| (b"ab".to_vec(), kept)).collect());
        for mut datagram in server.answer(&whole_part(&payload, own)).into_iter().flatten() {
            damage.iter().for_each(|(place, byte)| { let at = place.index(datagram.len()); datagram[at] = *byte; });
            datagram.truncate(cut.map_or(datagram.len(), |cut| cut.index(datagram.len())));
            datagram.extend(&tail);
            sound(&payload, own, &datagram);
        }
    }

    #[test]
    fn any_bytes_are_an_answer_or_none(verb in prop::sample::select(VERBS.to_vec()), bytes in vec(any::<u8>(), 0..80)) {
        let own = OwnId { request: 0x1234, nonce: 1 };
        sound(&asked(verb, &[b"a"]), own, &bytes);
        sound(&asked(verb, &[b"a"]), own, &framed(&bytes));
        sound(&asked(verb, &[b"a"]), own, &framed(&[b"VA ", &bytes[..]].concat()));
    }

    #[test]
    fn with_another_payload_nothing_panics(one in case(), bytes in vec(any::<u8>(), 0..200)) {
        let names: Vec<&[u8]> = one.keys.iter().map(|&key| NAMES[key]).collect();
        let ask = read(&asked(one.verb, &names));
        let mut out = [0; 1_400];
        for payload in [bytes.clone(), framed(&bytes), framed(&[&[0x80], &bytes[..]].concat())] {
            let request = Request { payload: &payload, ask: &ask };
            let own = OwnId { request: 1, nonce: 1 };
            let _ = MEMCACHED.write_part(&request, &mut [ask.first].into_iter(), own, &mut out);
            let _ = MEMCACHED.write_reply(&request, &|_| Some(Stored { flags: 1, cas: 2, bytes: b"x" }), 0, &mut out);
            let _ = MEMCACHED.read_answer(&request, own, &payload, &mut KeyRoom::default()).map(drop);
            let _ = Gather::new(&MEMCACHED, &request, &mut |_, _| Some(0));
        }
    }
}

/// Checks that an accepted answer contains the id, the nonce, the key and the value.
fn sound(request: &[u8], own: OwnId, datagram: &[u8]) {
    let (ask, mut room) = (read(request), KeyRoom::default());
    let request = Request { payload: request, ask: &ask };
    let Ok(answer) = MEMCACHED.read_answer(&request, own, datagram, &mut room) else { return };
    let has = |wanted: &[u8]| datagram.windows(wanted.len()).any(|window| window == wanted);
    let is_binary = request.payload[8] == 0x80;
    let text = format!(" O{:016x}", own.nonce);
    assert_eq!(datagram[..4], [own.request.to_be_bytes(), [0, 0]].concat());
    assert!(if is_binary { datagram[20..24] == own.nonce.to_be_bytes()[4..] } else { has(text.as_bytes()) });
    assert!((1..=250).contains(&answer.key.len()));
    assert!(has(answer.key) || (!is_binary && has(b" b ")), "{}", datagram.escape_ascii());
    if let Content::Value(value) = answer.content {
        let tail = if is_binary { 0 } else { 2 };
        assert_eq!(usize::from(value.start) + usize::from(value.len) + tail, datagram.len());
        assert_eq!(value.within(datagram).bytes.len(), usize::from(value.len));
    }
}
