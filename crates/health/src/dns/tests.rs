//! Tests of `dns`.

use proptest::prelude::*;

use super::super::hostile::{ask, datagrams, nobody, recorded, waits, words};
use super::*;
use config::CheckKind;

fn kind(port: u16, record: DnsRecord) -> CheckKind {
    CheckKind::Dns(DnsCheck { port, name: "www.example.org".into(), record, probe_mtu: false })
}

/// Encodes a response to `query` with these encoded records after the question.
fn answer(query: &[u8], flags: [u8; 2], records: &[Vec<u8>]) -> Vec<u8> {
    let mut answer = query.to_vec();
    answer[2..4].copy_from_slice(&flags);
    answer[7] = u8::try_from(records.len()).unwrap();
    answer.extend(records.iter().flatten());
    answer
}

/// Encodes a record with `name` as its encoded owner name.
fn record(name: &[u8], kind: u8, data: &[u8]) -> Vec<u8> {
    let length = u8::try_from(data.len()).unwrap();
    [name, &[0, kind, 0, 1, 0, 0, 0, 60, 0, length], data].concat()
}

const GOOD: [u8; 2] = [0x81, 0x80];
/// A compression pointer to the name in the question.
const OWNER: &[u8] = &[0xc0, 12];

fn a() -> Vec<u8> {
    record(OWNER, 1, &[192, 0, 2, 1])
}

#[test]
fn a_query_is_laid_out_as_rfc_1035_says() {
    let expected =
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03www\x07example\x03org\x00\x00\x1c\x00\x01";
    assert_eq!(query([0x12, 0x34], "www.example.org", DnsRecord::Aaaa).unwrap(), expected);
    let root = query([0, 0], ".", DnsRecord::Soa).unwrap();
    assert_eq!(root[12..], [0, 0, 6, 0, 1]);
    for (record, number) in [(DnsRecord::A, 1), (DnsRecord::Ns, 2), (DnsRecord::Soa, 6), (DnsRecord::Txt, 16)]
    {
        assert_eq!(query([0, 0], ".", record).unwrap()[14], number);
    }
}

#[test]
fn a_name_that_is_none_is_not_asked_for() {
    let longest = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(61));
    assert_eq!(longest.len(), 253);
    assert!(query([0, 0], &longest, DnsRecord::A).is_some());
    for name in ["", "a..b", "a.", &"a".repeat(64), &format!("{longest}b")] {
        assert_eq!(query([0, 0], name, DnsRecord::A), None, "{name}");
    }
}

#[tokio::test]
async fn an_answer_with_such_a_record_passes() {
    let cname = record(OWNER, 5, b"\x03web\xc0\x10");
    let port = datagrams(move |query| vec![answer(query, GOOD, &[cname.clone(), a()])]).await;
    assert_eq!(ask(&kind(port, DnsRecord::A)).await, Ok(()));
    assert_eq!(
        words(&kind(port, DnsRecord::Aaaa)).await,
        "DNS response without a record of the requested type"
    );
}

#[tokio::test]
async fn an_answer_with_another_id_is_not_the_answer() {
    let strange = |query: &[u8]| {
        let mut other = answer(query, [0x81, 0x82], &[]);
        other[0] ^= 1;
        other
    };
    let port =
        datagrams(move |query| vec![strange(query), vec![], vec![query[0]], answer(query, GOOD, &[a()])])
            .await;
    assert_eq!(ask(&kind(port, DnsRecord::A)).await, Ok(()));
    let port = datagrams(move |query| vec![strange(query)]).await;
    assert!(waits(&kind(port, DnsRecord::A)).await);
}

#[tokio::test]
async fn ids_differ_from_attempt_to_attempt() {
    let (seen, mut ids) = tokio::sync::mpsc::unbounded_channel();
    let port = datagrams(move |query| {
        seen.send([query[0], query[1]]).unwrap();
        vec![answer(query, GOOD, &[a()])]
    })
    .await;
    let mut different = std::collections::BTreeSet::new();
    for _ in 0..16 {
        assert_eq!(ask(&kind(port, DnsRecord::A)).await, Ok(()));
        different.insert(ids.recv().await.unwrap());
    }
    assert!(different.len() > 8, "{different:?}");
}

#[tokio::test]
async fn a_port_without_a_server_refuses() {
    assert_eq!(words(&kind(nobody().await, DnsRecord::A)).await, "ICMP port unreachable");
}

#[test]
fn what_is_no_good_answer_fails_with_its_reason() {
    let query = query([7, 7], "www.example.org", DnsRecord::A).unwrap();
    let judged = |answer: &[u8]| match judge(answer, &query) {
        None => "waits".to_owned(),
        Some(Ok(())) => "passes".to_owned(),
        Some(Err(failure)) => failure.to_string(),
    };
    let good = answer(&query, GOOD, &[a()]);
    assert_eq!(judged(&good), "passes");
    let mut case = good.clone();
    case[13..16].copy_from_slice(b"WwW");
    assert_eq!(judged(&case), "passes", "names are compared without regard to case");
    assert_eq!(judged(&query), "DNS query instead of a response");
    let mut other = good.clone();
    other[13] = b'v';
    assert_eq!(judged(&other), "DNS response to a different question");
    let mut other = good.clone();
    other[good.len() - a().len() - 3] = 28;
    assert_eq!(judged(&other), "DNS response to a different question");
    let mut none = good.clone();
    none[5] = 0;
    assert_eq!(judged(&none), "DNS response to a different question");
    assert_eq!(judged(&answer(&query, [0x81, 0x82], &[])), "DNS response code SERVFAIL, expected NOERROR");
    assert_eq!(judged(&answer(&query, [0x81, 0x83], &[])), "DNS response code NXDOMAIN, expected NOERROR");
    assert_eq!(
        judged(&[&query[..2], &[0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]].concat()),
        "DNS response code FORMERR, expected NOERROR"
    );
    assert_eq!(judged(&answer(&query, GOOD, &[])), "DNS response without a record of the requested type");
    let mut chaos = good.clone();
    let class = good.len() - 4 - 2 - 4 - 1;
    chaos[class] = 3;
    assert_eq!(judged(&chaos), "DNS response without a record of the requested type");
    for length in 12..good.len() {
        let words = judged(&good[..length]);
        assert!(
            words == "invalid DNS response" || words == "DNS response to a different question",
            "{words}"
        );
    }
    assert_eq!(judged(&good[..11]), "invalid DNS response");
    assert_eq!(judged(&good[..1]), "waits");
}

#[test]
fn an_answer_that_was_cut_on_the_way_counts_as_far_as_it_goes() {
    let query = query([7, 7], "www.example.org", DnsRecord::A).unwrap();
    let cut = [0x83, 0x80];
    let whole = answer(&query, cut, &[a(), a()]);
    assert_eq!(judge(&whole[..whole.len() - 3], &query), Some(Ok(())));
    assert_eq!(judge(&whole[..whole.len() - 20], &query), Some(Err(Failure::NoRecord)));
    let honest = answer(&query, GOOD, &[a(), a()]);
    assert!(matches!(judge(&honest[..honest.len() - 3], &query), Some(Err(Failure::Malformed(_)))));
}

#[test]
fn looping_or_overlong_name_is_refused() {
    let query = query([7, 7], "www.example.org", DnsRecord::A).unwrap();
    let here = u8::try_from(query.len()).unwrap();
    let long = [[63; 64].as_slice(); 4].concat();
    let table: [(&[u8], bool); 11] = [
        (&[0xc0, 12], true),
        (b"\x01x\xc0\x0c", true),
        (&[0xc0, 16], true), // The pointer leads to "example.org".
        (&[0], true),
        (&[0xc0, here], false),          // The pointer leads to itself.
        (&[0xc0, here + 2], false),      // The pointer leads forward.
        (&[1, b'x', 0xc0, here], false), // The pointer leads back to the label before it.
        (&[0xc0, 3], false),             // The pointer leads into the header.
        (&[0xff, 0xff], false),          // The pointer leads out of the message.
        (&[0x40, 0], false),             // This label type does not exist.
        (&long, false),
    ];
    for (name, passes) in table {
        let answer = answer(&query, GOOD, &[record(name, 1, &[192, 0, 2, 1])]);
        assert_eq!(
            judge(&answer, &query),
            Some(if passes { Ok(()) } else { Err(Failure::malformed("invalid DNS response")) }),
            "{name:?}"
        );
    }
}

#[test]
fn data_must_be_as_long_as_its_type_is() {
    for (kind, length, passes) in [
        (1, 4, true),
        (1, 3, false),
        (1, 16, false),
        (28, 16, true),
        (28, 4, false),
        (16, 1, true),
        (16, 0, false),
    ] {
        let record = record(OWNER, kind, &vec![0; length]);
        let message = [&[0; 12], b"\0".as_slice(), &record].concat();
        assert_eq!(read_record(&message, 13).is_some(), passes, "type {kind}, {length} bytes");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_judged(bytes in prop::collection::vec(any::<u8>(), 0..600), cut in 0..33_usize) {
        let query = query([7, 7], "www.example.org", DnsRecord::A).unwrap();
        let _ = judge(&bytes, &query);
        let mut after = answer(&query, GOOD, &[]);
        after[6] = 0xff;
        after.truncate(after.len() - cut.min(21));
        after.extend(bytes);
        let _ = judge(&after, &query);
    }

    /// Compares the parser with a simple parser that remembers every visited offset.
    #[test]
    fn names_are_read_as_a_slow_reader_reads_them(bytes in prop::collection::vec(prop_oneof![0..4_u8, Just(0xc0), 12..40_u8], 12..60)) {
        if let Some(end) = end_of_name(&bytes, 12) {
            prop_assert_eq!(slow_end(&bytes, 12), Some(end));
        } else {
            // A name is refused only if its pointers form a loop, leave the message or point
            // forward.
            prop_assert!(slow_end(&bytes, 12).is_none() || points_ahead_or_into_the_header(&bytes, 12));
        }
    }
}

fn slow_end(bytes: &[u8], start: usize) -> Option<usize> {
    let (mut at, mut end, mut been) = (start, None, std::collections::BTreeSet::new());
    while been.insert(at) {
        let first = usize::from(*bytes.get(at)?);
        if first == 0 {
            return end.or(Some(at + 1));
        } else if first >= 192 {
            end = end.or(Some(at + 2));
            at = (first - 192) * 256 + usize::from(*bytes.get(at + 1)?);
        } else if first < 64 {
            at += first + 1;
        } else {
            return None;
        }
    }
    None
}

fn points_ahead_or_into_the_header(bytes: &[u8], start: usize) -> bool {
    let (mut at, mut least) = (start, start);
    loop {
        let first = usize::from(bytes[at]);
        if first == 0 {
            return false;
        } else if first >= 192 {
            let target = (first - 192) * 256 + usize::from(bytes[at + 1]);
            if target >= least || target < 12 {
                return true;
            }
            (at, least) = (target, target);
        } else {
            at += first + 1;
        }
    }
}

/// A query with a random ID that fills a packet, for a server whose loopback interface has an MTU
/// of at least 1,280 bytes.
#[tokio::test]
async fn padded_query_fills_a_packet_and_any_response_to_it_passes() {
    let padded = |port| {
        let name = "www.example.org".into();
        CheckKind::Dns(DnsCheck { port, name, record: DnsRecord::A, probe_mtu: true })
    };
    let (seen, mut queries) = tokio::sync::mpsc::unbounded_channel();
    let port = datagrams(move |query| {
        seen.send(query.to_vec()).unwrap();
        if query.len() < 512 {
            return vec![answer(query, GOOD, &[a()])];
        }
        // A server that reads at most 512 bytes reports a format error.
        vec![[&query[..2], &[0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]].concat()]
    })
    .await;
    assert_eq!(ask(&padded(port)).await, Ok(()));
    let short = queries.recv().await.unwrap();
    let long = queries.recv().await.unwrap();
    assert!(long.len() > 1_200, "{} bytes", long.len());
    assert_eq!((&long[2..11], long[11], &long[12..short.len()]), (&short[2..11], 1, &short[12..]));
    let (opt, padding) = long[short.len()..].split_at(15);
    let length = |bytes: &[u8]| usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    assert_eq!(opt[..9], [0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0]);
    assert_eq!((length(&opt[9..11]), length(&opt[13..])), (padding.len() + 4, padding.len()));
    assert!(opt[11..13] == [0, 12] && padding.iter().all(|byte| *byte == 0));

    // A query with the ID is no response to it.
    let lossy = |query: &[u8]| {
        let short = query.len() < 512;
        vec![if short { answer(query, GOOD, &[a()]) } else { query[..12].to_vec() }]
    };
    let why = recorded(&padded(datagrams(lossy).await)).await;
    assert!(why.to_string().starts_with("answered, but no answer to a full-size packet with "), "{why}");
    assert_eq!(why.reason(), "no_answer");
    let failing = datagrams(|query| vec![answer(query, [0x81, 0x82], &[])]).await;
    assert_eq!(words(&padded(failing)).await, "DNS response code SERVFAIL, expected NOERROR");
}
