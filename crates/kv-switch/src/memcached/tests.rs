//! Tests which requests are accepted and which are refused. Some comments quote the answer of
//! memcached 1.6.18 to the same bytes over UDP.

use std::ops::ControlFlow;

use crate::{
    Application, Ask, Datagram, Effect, KeyRoom, Memcached, Offset, Plan, Prepared, Refusal, Request, Stored,
    Verb,
};

mod adversary;
mod expiry;
mod gathered;
mod generated;
mod oracle;
mod reader;
mod replicated;
mod server;
mod table;
mod versions;

const READ: Effect = Effect::Read { cacheable: true };
const FORWARDED: Effect = Effect::Read { cacheable: false };

fn framed(command: &[u8]) -> Vec<u8> {
    [b"\x12\x34\0\0\0\x01\0\0", command].concat()
}

fn read(command: &[u8]) -> Result<Ask, Refusal> {
    Memcached::new(32).read(Datagram::whole(&framed(command)))
}

fn keys(command: &[u8]) -> Vec<Vec<u8>> {
    let (payload, memcached) = (framed(command), Memcached::new(32));
    let ask = memcached.read(Datagram::whole(&payload)).unwrap();
    let mut found = Vec::new();
    memcached.items(&payload, &ask, &mut |item| {
        found.push(memcached.key(&payload, &item, &mut KeyRoom::default()).to_vec());
        ControlFlow::Continue(())
    });
    assert_eq!(found.len(), usize::from(ask.keys));
    found
}

/// Checks that a command is accepted with one key, and checks its verb, effect and key.
fn one(command: &[u8], verb: Verb, effect: Effect, key: &[u8]) {
    let ask = read(command).unwrap_or_else(|refusal| panic!("{}: {refusal}", command.escape_ascii()));
    assert_eq!(
        (ask.plan, ask.effect, ask.verb),
        (Plan::One, effect, verb.number()),
        "{}",
        command.escape_ascii()
    );
    assert_eq!(keys(command), [key], "{}", command.escape_ascii());
}

fn refused(command: &[u8], refusal: Refusal) {
    assert_eq!(read(command), Err(refusal), "{}", command.escape_ascii());
}

/// Writes a binary command with an opaque (a 32-bit number that the server echoes). The data type
/// and the vbucket are not zero, because servers ignore them.
fn binary(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let key_length = u16::try_from(key.len()).unwrap().to_be_bytes();
    let body = u32::try_from(extras.len() + key.len() + value.len()).unwrap().to_be_bytes();
    let mut command =
        vec![0x80, opcode, key_length[0], key_length[1], u8::try_from(extras.len()).unwrap(), 7, 0, 9];
    command.extend(body);
    command.extend([0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0, 0, 0, 0, 0]);
    [&command, extras, key, value].concat()
}

#[test]
fn the_text_commands_that_memcached_serves_are_read() {
    let text = Effect::Conditional;
    one(b"get foo\r\n", Verb::Get, READ, b"foo");
    one(b"gets foo\r\n", Verb::Gets, FORWARDED, b"foo");
    one(b"gat 100 foo\r\n", Verb::Gat, Effect::Write, b"foo");
    one(b"gats -1 foo\r\n", Verb::Gats, Effect::Write, b"foo");
    one(b"set k 0 0 5\r\nhello\r\n", Verb::Set, Effect::Write, b"k");
    // memcached answers STORED and reads a value of five bytes
    one(b"set k 4294967295 -1 005\r\nhello\r\n", Verb::Set, Effect::Write, b"k");
    one(b"set k 0 0 0\r\n\r\n", Verb::Set, Effect::Write, b"k");
    // a value may contain line ends
    one(b"set k 0 0 4\r\n\r\n\r\n\r\n", Verb::Set, Effect::Write, b"k");
    one(b"set k 0 0 5 noreply\r\nhello\r\n", Verb::Set, Effect::Write, b"k");
    one(b"add k 0 0 5\r\nhello\r\n", Verb::Add, text, b"k");
    one(b"replace k 0 0 5\r\nhello\r\n", Verb::Replace, text, b"k");
    one(b"append k 0 0 5 noreply\r\nhello\r\n", Verb::Append, text, b"k");
    one(b"prepend k 0 0 5\r\nhello\r\n", Verb::Prepend, text, b"k");
    one(b"cas k 0 0 2 99\r\nxx\r\n", Verb::Cas, text, b"k");
    one(b"cas k 0 0 2 18446744073709551615 noreply\r\nxx\r\n", Verb::Cas, text, b"k");
    one(b"delete k\r\n", Verb::Delete, Effect::Write, b"k");
    one(b"delete k 0\r\n", Verb::Delete, Effect::Write, b"k");
    one(b"delete k 0 noreply\r\n", Verb::Delete, Effect::Write, b"k");
    // this key is named noreply
    one(b"delete noreply\r\n", Verb::Delete, Effect::Write, b"noreply");
    one(b"incr k 05\r\n", Verb::Incr, text, b"k");
    one(b"decr k 18446744073709551615 noreply\r\n", Verb::Decr, text, b"k");
    one(b"touch k -1\r\n", Verb::Touch, Effect::Write, b"k");
    one(b"touch k 100 noreply\r\n", Verb::Touch, Effect::Write, b"k");
}

#[test]
fn names_of_verbs_stand_at_their_numbers() {
    let named = [
        (Verb::Get, "get"),
        (Verb::Cas, "cas"),
        (Verb::Touch, "touch"),
        (Verb::MetaGet, "mg"),
        (Verb::Noop, "noop"),
        (Verb::Version, "version"),
        (Verb::Request, "request"),
    ];
    assert!(named.iter().all(|&(verb, name)| Verb::NAMES[usize::from(verb.number())] == name));
    assert_eq!(Verb::NAMES.len(), usize::from(Verb::Request.number()) + 1);
    let unknown = Offset::new(0, 1).read(Datagram::whole(b"get")).unwrap();
    assert_eq!(unknown.verb, Verb::Request.number());
}

#[test]
fn separators_are_spaces_alone_and_runs_of_them_are_one() {
    one(b"get  k \r\n", Verb::Get, READ, b"k"); // libmemcached ends its lines with a space
    one(b"set k  0 0 5 \r\nhello\r\n", Verb::Set, Effect::Write, b"k");
    // memcached answers END, because this key is different from k
    one(b"get k\tx\r\n", Verb::Get, READ, b"k\tx");
    // memcached answers END, because this key is different from k
    one(b"get k\r\r\n", Verb::Get, READ, b"k\r");
    one(b"get \x01\x7f\xff\r\n", Verb::Get, READ, b"\x01\x7f\xff");
    assert_eq!(keys(b"get a  b a \r\n"), [b"a", b"b", b"a"]);
}

#[test]
fn a_separator_is_seen_wherever_it_stands_in_a_line() {
    for len in 1..=70 {
        for at in 0..len {
            let line = |byte| {
                let mut key = vec![b'k'; len];
                key[at] = byte;
                [b"get ".as_slice(), &key, b"\r\n"].concat()
            };
            let ends = [at, len - at - 1].map(|count| vec![b'k'; count]);
            let wanted: Vec<_> = ends.into_iter().filter(|key| !key.is_empty()).collect();
            if !wanted.is_empty() {
                assert_eq!(keys(&line(b' ')), wanted, "{at} of {len}");
            }
            refused(&line(0), Refusal::ZeroByte);
            assert!(read(&line(b'\n')).is_err(), "{at} of {len}");
        }
    }
}

#[test]
fn several_keys_are_one_request_up_to_the_limit() {
    let names: Vec<String> = (0..33).map(|n| format!("key{n}")).collect();
    let line = |count: usize| format!("get {}\r\n", names[..count].join(" "));
    let ask = read(line(32).as_bytes()).unwrap();
    assert_eq!((ask.plan, ask.keys), (Plan::Join, 32));
    assert!(keys(line(32).as_bytes()).iter().eq(names[..32].iter().map(String::as_bytes)));
    refused(line(33).as_bytes(), Refusal::TooManyKeys);

    let gets = |count: usize| {
        names[..count].iter().flat_map(|name| binary(0x0d, b"", name.as_bytes(), b"")).collect()
    };
    let batch = |count: usize| [gets(count), binary(0x0a, b"", b"", b"")].concat();
    let ask = read(&batch(32)).unwrap();
    assert_eq!((ask.plan, ask.effect, ask.keys), (Plan::Join, READ, 32));
    assert!(keys(&batch(32)).iter().eq(names[..32].iter().map(String::as_bytes)));
    refused(&batch(33), Refusal::TooManyKeys);
    refused(&gets(3), Refusal::WrongLength); // without a NOOP, the end of the reply is unknown
    assert_eq!(read(&batch(1)).unwrap().plan, Plan::One);
}

#[test]
fn items_end_where_the_caller_breaks() {
    let memcached = Memcached::new(32);
    let quiet = binary(0x09, b"", b"a", b"").repeat(2);
    for command in [b"get a b c\r\n".to_vec(), [quiet, binary(0x0a, b"", b"", b"")].concat()] {
        let payload = framed(&command);
        let ask = memcached.read(Datagram::whole(&payload)).unwrap();
        let mut seen = 0;
        memcached.items(&payload, &ask, &mut |_| {
            seen += 1;
            ControlFlow::Break(())
        });
        assert_eq!(seen, 1);
    }
}

#[test]
fn lengths_that_do_not_add_up_are_refused() {
    // Memcached answers "CLIENT_ERROR bad command line format", and then parses the value as a
    // command and answers "ERROR".
    refused(b"set k 0 0 5x\r\nhello\r\n", Refusal::BadNumber);
    refused(b"set k 0 0 -1\r\nhello\r\n", Refusal::BadNumber);
    refused(b"set k -1 0 5\r\nhello\r\n", Refusal::BadNumber);
    refused(b"cas k 0 0 2\r\nxx\r\n", Refusal::WrongArguments);
    // Memcached stores these values, because strtol accepts the numbers. No known client sends such
    // numbers.
    refused(b"set k 0 0 +5\r\nhello\r\n", Refusal::BadNumber);
    refused(b"set k 0\t 0 5\r\nhello\r\n", Refusal::BadNumber);
    refused(b"set k 4294967296 0 5\r\nhello\r\n", Refusal::BadNumber);
    refused(b"set k 0 99999999999 5\r\nhello\r\n", Refusal::BadNumber);
    refused(b"set k 0 0 5 garbage\r\nhello\r\n", Refusal::WrongArguments);
    refused(b"set k 0 0 5 noreply noreply\r\nhello\r\n", Refusal::WrongArguments);
    // Memcached waits for the missing bytes and reads them from the datagrams of other clients.
    refused(b"set k 0 0 6\r\nhello\r\n", Refusal::WrongLength);
    refused(b"set k 0 0 5\r\nhello", Refusal::WrongLength);
    refused(b"set k 0 0 18446744073709551615\r\nhello\r\n", Refusal::WrongLength);
    refused(b"set k 0 0 99999999999999999999\r\nhello\r\n", Refusal::BadNumber);
    // Memcached parses the remaining bytes as the next command.
    refused(b"set k 0 0 4\r\nhello\r\n", Refusal::WrongLength);
    refused(b"set k 0 0 5\r\nhello\r\nflush_all\r\n", Refusal::WrongLength);
    // memcached answers "CLIENT_ERROR bad data chunk"
    refused(b"set k 0 0 5\r\nhelloXX", Refusal::LineEnd);
    refused(b"ms k 2x\r\nhi\r\n", Refusal::BadNumber);
    refused(b"ms k -2\r\nhi\r\n", Refusal::BadNumber);
    refused(b"ms k S2\r\nhi\r\n", Refusal::BadNumber); // the syntax of memcached before 1.6.10
    refused(b"ms k 3\r\nhi\r\n", Refusal::WrongLength);
    refused(b"ms k\r\nhi\r\n", Refusal::WrongArguments);
    refused(b"incr k -1\r\n", Refusal::BadNumber);
    refused(b"incr k 18446744073709551616\r\n", Refusal::BadNumber);
    refused(b"incr k 5 foo\r\n", Refusal::WrongArguments);
    refused(b"touch k x\r\n", Refusal::BadNumber);
    refused(b"touch k\r\n", Refusal::WrongArguments);
    refused(b"gat x k\r\n", Refusal::BadNumber);
    refused(b"delete k 5\r\n", Refusal::WrongArguments);
    refused(b"delete k 0 0\r\n", Refusal::WrongArguments);
}

#[test]
fn lines_that_end_elsewhere_are_refused() {
    refused(b"get k\0x\r\n", Refusal::ZeroByte); // memcached answers for the key k
    refused(b"get k\0\r\n", Refusal::ZeroByte);
    refused(b"get k\n", Refusal::LineEnd); // memcached accepts this line end
    refused(b"set k 0 0 5\nhello\r\n", Refusal::LineEnd); // memcached answers STORED
    // memcached does not answer, and continues the line with the next datagram
    refused(b"get k", Refusal::LineEnd);
    refused(b"\n", Refusal::LineEnd);
    refused(b"get k\r\nget k\r\n", Refusal::SeveralCommands); // memcached answers both commands
    refused(b"get k\r\ngarbage", Refusal::SeveralCommands);
    refused(b"delete k\r\nflush_all\r\n", Refusal::SeveralCommands);
    refused(b"get k\r\n\0", Refusal::SeveralCommands);
}

#[test]
fn unknown_verbs_and_an_administrators_are_refused() {
    for line in [
        "stats",
        "stats cachedump 1 1",
        "flush_all",
        "flush_all 10 noreply",
        "verbosity 1",
        "quit",
        "shutdown",
        "slabs automove 1",
        "lru mode flat",
        "lru_crawler metadump all",
        "watch fetchers",
        "cache_memlimit 64",
        "extstore free_memchunks 1 1",
        "misbehave",
        "debug",
        "refresh_certs",
    ] {
        refused(format!("{line}\r\n").as_bytes(), Refusal::Administrative);
    }
    for line in ["GET k", " get k", "bget k", "g k", "mz k", "getx k", "x", "", " ", "get\tk", "sets k 0 0 0"]
    {
        refused(format!("{line}\r\n").as_bytes(), Refusal::UnknownVerb);
    }
    for opcode in [0x07, 0x08, 0x10, 0x17, 0x18, 0x1b, 0x20, 0x21, 0x22] {
        refused(&binary(opcode, b"", b"", b""), Refusal::Administrative);
        refused(&binary(opcode, b"\0\0\0\x01", b"k", b""), Refusal::Administrative);
    }
    for opcode in [0x1f, 0x25, 0x30, 0x40, 0xff] {
        refused(&binary(opcode, b"", b"k", b""), Refusal::UnknownVerb);
    }
}

/// A client sends a keyless command when it takes a connection from its pool, and waits for the
/// answer.
#[test]
fn keyless_commands_are_read_as_single_commands() {
    for (line, opcode, verb) in [("mn", 0x0a, Verb::Noop), ("version", 0x0b, Verb::Version)] {
        let (text, bare) = (format!("{line}\r\n"), binary(opcode, b"", b"", b""));
        for command in [text.as_bytes(), format!("{line} \r\n").as_bytes(), &bare] {
            assert_eq!(read(command), Ok(Ask::keyless(verb.number())), "{}", command.escape_ascii());
            assert_eq!(keys(command), [[]; 0]);
        }
        for behind in [&b"get k\r\n"[..], b"flush_all\r\n", &binary(0x08, b"", b"", b""), b"\0"] {
            refused(&[text.as_bytes(), behind].concat(), Refusal::SeveralCommands);
            refused(&[&bare[..], behind].concat(), Refusal::SeveralCommands);
        }
        refused(format!("{line} x\r\n").as_bytes(), Refusal::WrongArguments);
        refused(format!("{line} noreply\r\n").as_bytes(), Refusal::WrongArguments);
        refused(line.as_bytes(), Refusal::LineEnd);
        refused(format!(" {line}\r\n").as_bytes(), Refusal::UnknownVerb);
        refused(format!("{line}s\r\n").as_bytes(), Refusal::UnknownVerb);
        refused(&binary(opcode, b"", b"k", b""), Refusal::WrongLength);
        refused(&binary(opcode, &[0; 4], b"", b""), Refusal::WrongLength);
        refused(&binary(opcode, b"", b"", b"x"), Refusal::WrongLength);
    }
    let quiet = binary(0x09, b"", b"k", b"");
    refused(&[quiet, binary(0x0b, b"", b"", b"")].concat(), Refusal::SeveralCommands);
}

#[test]
fn keys_have_1_to_250_bytes() {
    let (long, longer) = ("k".repeat(250), "k".repeat(251));
    one(format!("get {long}\r\n").as_bytes(), Verb::Get, READ, long.as_bytes());
    one(format!("mg {long} v\r\n").as_bytes(), Verb::MetaGet, READ, long.as_bytes());
    one(&binary(0, b"", long.as_bytes(), b""), Verb::Get, READ, long.as_bytes());
    for verb in ["get", "get k", "gat 0", "delete", "mg", "md"] {
        refused(format!("{verb} {longer}\r\n").as_bytes(), Refusal::KeyTooLong);
    }
    refused(format!("set {longer} 0 0 1\r\nx\r\n").as_bytes(), Refusal::KeyTooLong);
    refused(format!("ms {longer} 1\r\nx\r\n").as_bytes(), Refusal::KeyTooLong);
    refused(&binary(0, b"", longer.as_bytes(), b""), Refusal::KeyTooLong);
    for verb in ["get", "gets ", "gat 0", "delete", "set", "incr", "touch", "mg", "ms", "md", "ma", "me"] {
        refused(format!("{verb}\r\n").as_bytes(), Refusal::KeyEmpty);
    }
    // memcached answers "Invalid arguments" and closes the connection
    refused(&binary(0, b"", b"", b""), Refusal::KeyEmpty);
}

#[test]
fn meta_commands_have_the_flags_of_their_verb() {
    one(b"mg k\r\n", Verb::MetaGet, READ, b"k");
    one(b"mg foo v f t c k O123\r\n", Verb::MetaGet, READ, b"foo");
    one(b"mg  k  v \r\n", Verb::MetaGet, READ, b"k");
    one(b"mg k v h l t u\r\n", Verb::MetaGet, FORWARDED, b"k");
    one(b"mg k v T30\r\n", Verb::MetaGet, Effect::Write, b"k");
    one(b"mg k v N30\r\n", Verb::MetaGet, Effect::Conditional, b"k");
    one(b"mg k v R30 T30\r\n", Verb::MetaGet, Effect::Conditional, b"k");
    one(b"ms k 2\r\nhi\r\n", Verb::MetaSet, Effect::Write, b"k");
    one(b"ms aw== 02 T-1 F1 I k Oabc q c s b\r\nhi\r\n", Verb::MetaSet, Effect::Write, b"k");
    one(b"ms k 2 MS\r\nhi\r\n", Verb::MetaSet, Effect::Write, b"k");
    one(b"ms k 2 Ma N0\r\nhi\r\n", Verb::MetaSet, Effect::Conditional, b"k");
    one(b"ms k 2 C1\r\nhi\r\n", Verb::MetaSet, Effect::Conditional, b"k");
    one(b"md k q I T30\r\n", Verb::MetaDelete, Effect::Write, b"k");
    one(b"md k C5\r\n", Verb::MetaDelete, Effect::Conditional, b"k");
    one(b"ma k N0 D5 J10 MI v t c\r\n", Verb::MetaArithmetic, Effect::Conditional, b"k");
    one(b"me k\r\n", Verb::MetaDebug, FORWARDED, b"k");
    for line in [
        "mg k v v",
        "mg k v1",
        "mg k vt",
        "mg k Z",
        "mg k Nx",
        "mg k N",
        "mg k F1",
        "mg k \x7f",
        "mg k \u{e9}",
        "md k v",
        "ma k I",
        "ma k MII",
        "ma k M",
        "me k x",
        "me k b1",
        "mg k T99999999999",
    ] {
        refused(format!("{line}\r\n").as_bytes(), Refusal::BadFlag);
    }
    // the token is too long
    refused(format!("mg k O{}\r\n", "x".repeat(32)).as_bytes(), Refusal::BadFlag);
    one(format!("mg k O{}\r\n", "x".repeat(31)).as_bytes(), Verb::MetaGet, READ, b"k");
}

#[test]
fn keys_in_base64_are_decoded_and_canonical() {
    one(b"mg aw== b k v\r\n", Verb::MetaGet, READ, b"k");
    one(b"mg AP8gDQo= b\r\n", Verb::MetaGet, READ, b"\0\xff \r\n");
    one(b"me aw== b\r\n", Verb::MetaDebug, FORWARDED, b"k");
    one(b"mg aw==\r\n", Verb::MetaGet, READ, b"aw=="); // without the flag b, this text is the key
    let longest = "AAAA".repeat(62); // 248 letters decode to 186 bytes
    one(format!("mg {longest} b\r\n").as_bytes(), Verb::MetaGet, READ, &[0; 186]);
    refused(b"mg a*w== b\r\n", Refusal::BadBase64); // memcached skips the asterisk
    refused(b"mg ax== b\r\n", Refusal::BadBase64); // memcached also decodes this to k
    refused(b"mg aw b\r\n", Refusal::BadBase64);
    refused(b"mg aw=== b\r\n", Refusal::BadBase64);
    refused(b"mg k b\r\n", Refusal::BadBase64);
    refused(b"mg ==== b\r\n", Refusal::BadBase64);
}

#[test]
fn the_binary_commands_that_memcached_serves_are_read() {
    let (eight, twenty, four) = ([0; 8], [0; 20], [0, 0, 0, 100]);
    for opcode in [0x00, 0x09, 0x0c, 0x0d] {
        one(&binary(opcode, b"", b"foo", b""), Verb::Get, READ, b"foo");
    }
    for (opcodes, verb, effect) in [
        ([0x01, 0x11], Verb::Set, Effect::Write),
        ([0x02, 0x12], Verb::Add, Effect::Conditional),
        ([0x03, 0x13], Verb::Replace, Effect::Conditional),
    ] {
        for opcode in opcodes {
            one(&binary(opcode, &eight, b"foo", b"value"), verb, effect, b"foo");
            one(&binary(opcode, &eight, b"foo", b""), verb, effect, b"foo");
            refused(&binary(opcode, b"", b"foo", b"value"), Refusal::WrongLength);
        }
    }
    for opcode in [0x04, 0x14] {
        one(&binary(opcode, b"", b"foo", b""), Verb::Delete, Effect::Write, b"foo");
    }
    for (opcode, verb) in [(0x05, Verb::Incr), (0x15, Verb::Incr), (0x06, Verb::Decr), (0x16, Verb::Decr)] {
        one(&binary(opcode, &twenty, b"foo", b""), verb, Effect::Conditional, b"foo");
        refused(&binary(opcode, &twenty, b"foo", b"x"), Refusal::WrongLength);
    }
    for (opcode, verb) in
        [(0x0e, Verb::Append), (0x19, Verb::Append), (0x0f, Verb::Prepend), (0x1a, Verb::Prepend)]
    {
        one(&binary(opcode, b"", b"foo", b"x"), verb, Effect::Conditional, b"foo");
        refused(&binary(opcode, &four, b"foo", b"x"), Refusal::WrongLength);
    }
    one(&binary(0x1c, &four, b"foo", b""), Verb::Touch, Effect::Write, b"foo");
    // memcached accepts this command
    refused(&binary(0x1c, &four, b"foo", b"x"), Refusal::WrongLength);
    for opcode in [0x1d, 0x1e, 0x23, 0x24] {
        one(&binary(opcode, &four, b"foo", b""), Verb::Gat, Effect::Write, b"foo");
        refused(&binary(opcode, b"", b"foo", b""), Refusal::WrongLength);
    }
    // binary keys may contain any byte
    one(&binary(0, b"", b"k\0 \n", b""), Verb::Get, READ, b"k\0 \n");
    refused(&binary(0, b"", b"k", b"x"), Refusal::WrongLength);
    refused(&binary(0, b"\0\0\0\0", b"k", b""), Refusal::WrongLength);
}

#[test]
fn a_binary_command_with_a_version_depends_on_it() {
    for (opcode, extras) in [(0x01, [0; 8].as_slice()), (0x04, b"")] {
        for byte in 16..24 {
            let mut command = binary(opcode, extras, b"k", b"");
            command[byte] = 1;
            one(&command, if opcode == 1 { Verb::Set } else { Verb::Delete }, Effect::Conditional, b"k");
        }
    }
}

#[test]
fn binary_lengths_end_at_the_datagrams_last_byte() {
    let set = binary(0x01, &[0; 8], b"k", b"value");
    refused(&set[..set.len() - 1], Refusal::WrongLength);
    refused(&[&set[..], b"x"].concat(), Refusal::SeveralCommands);
    refused(&set.repeat(2), Refusal::SeveralCommands);
    refused(&[binary(0x09, b"", b"k", b""), set].concat(), Refusal::SeveralCommands);
    let (quiet, noop) = (binary(0x09, b"", b"k", b""), binary(0x0a, b"", b"", b""));
    refused(&[&quiet[..], &noop, b"x"].concat(), Refusal::SeveralCommands);
    refused(&[&noop[..], &quiet].concat(), Refusal::SeveralCommands);
    refused(&[&quiet[..], &binary(0x11, &[0; 8], b"k", b""), &noop].concat(), Refusal::SeveralCommands);
    refused(&[&quiet[..], b"get k\r\n"].concat(), Refusal::WrongLength);
    refused(&noop[..23], Refusal::ShortFrame);
    for len in [u32::MAX, u32::MAX - 32, 0] {
        let mut command = quiet.clone();
        command[8..12].copy_from_slice(&len.to_be_bytes());
        assert!(read(&command).is_err());
    }
}

#[test]
fn the_frame_says_one_datagram() {
    let memcached = Memcached::new(32);
    let read = |payload: &[u8]| memcached.read(Datagram::whole(payload));
    // The sequence number and the reserved field are ignored. The client memcaslap sends 0x0100 in
    // the reserved field.
    assert!(read(b"\x12\x34\0\x05\0\x01\x01\0get k\r\n").is_ok());
    for total in [0_u16, 2, 0x0100, 0x0101, 0xffff] {
        let [high, low] = total.to_be_bytes();
        let payload = [b"\x12\x34\0\0", &[high, low, 0, 0][..], b"get k\r\n"].concat();
        assert_eq!(read(&payload), Err(Refusal::TotalNotOne));
    }
    for len in 0..=8 {
        assert_eq!(read(&framed(b"get k\r\n")[..len]), Err(Refusal::ShortFrame));
    }
}

#[test]
fn large_set_first_fragment_uses_datagram_length() {
    let memcached = Memcached::new(32);
    let value = vec![b'v'; 1_800];
    for command in [
        [b"set key:1 0 0 1800\r\n", &value[..], b"\r\n"].concat(),
        [b"ms a2V5OjE= 1800 b\r\n", &value[..], b"\r\n"].concat(),
        binary(0x01, &[0; 8], b"key:1", &value),
    ] {
        let whole = framed(&command);
        let length = u16::try_from(whole.len()).unwrap();
        let ask = memcached.read(Datagram::first_piece(&whole[..1_472], length)).unwrap();
        assert_eq!(memcached.key(&whole[..1_472], &ask.first, &mut KeyRoom::default()), b"key:1");
        assert_eq!(memcached.read(Datagram::whole(&whole)), Ok(ask));
        for wrong in [length - 1, length + 1, u16::MAX] {
            let read = memcached.read(Datagram::first_piece(&whole[..1_472], wrong));
            assert!(matches!(read, Err(Refusal::WrongLength | Refusal::SeveralCommands)), "{read:?}");
        }
        // A first fragment is refused if it ends before the end of the key (binary) or of the line
        // (text).
        for at_hand in 9..28 {
            let read = memcached.read(Datagram::first_piece(&whole[..at_hand], length));
            assert!(
                matches!(read, Err(Refusal::FirstFragmentTooShort | Refusal::ShortFrame) | Ok(_)),
                "{read:?}"
            );
            if let Ok(ask) = read {
                assert_eq!(memcached.key(&whole[..at_hand], &ask.first, &mut KeyRoom::default()), b"key:1");
            }
        }
    }
    let gets = framed(format!("get {}\r\n", ["key"; 32].join(" ")).as_bytes());
    let length = u16::try_from(gets.len()).unwrap();
    assert_eq!(
        memcached.read(Datagram::first_piece(&gets[..64], length)),
        Err(Refusal::FirstFragmentTooShort)
    );
}

#[test]
fn quiet_writes_are_not_acknowledged() {
    let is_acknowledged = |command: &[u8]| {
        let (payload, memcached) = (framed(command), Memcached::new(32));
        let ask = memcached.read(Datagram::whole(&payload)).unwrap();
        memcached.is_acknowledged(&Request { payload: &payload, ask: &ask })
    };
    for (answered, quiet) in [
        ("set noreply 0 0 2\r\nhi\r\n", "set k 0 0 2 noreply\r\nhi\r\n"),
        ("add k 0 0 9\r\n noreply \r\n", "add k 0 0 2  noreply \r\nhi\r\n"),
        ("replace k 0 0 2\r\nhi\r\n", "replace k 0 0 2 noreply\r\nhi\r\n"),
        ("append k 0 0 2\r\nhi\r\n", "append k 0 0 2 noreply\r\nhi\r\n"),
        ("prepend k 0 0 2\r\nhi\r\n", "prepend k 0 0 2 noreply\r\nhi\r\n"),
        ("cas k 0 0 2 7\r\nhi\r\n", "cas k 0 0 2 7 noreply\r\nhi\r\n"),
        ("delete noreply\r\n", "delete k noreply\r\n"),
        ("delete k 0\r\n", "delete k 0 noreply\r\n"),
        ("incr noreply 1\r\n", "incr k 1 noreply\r\n"),
        ("decr k 1\r\n", "decr k 1 noreply\r\n"),
        ("touch k 1\r\n", "touch k 1 noreply\r\n"),
        ("ms q 2 Oq T9\r\nhi\r\n", "ms k 2 T9 q\r\nhi\r\n"),
        ("md k k Oq\r\n", "md k q k\r\n"),
    ] {
        assert!(is_acknowledged(answered.as_bytes()), "{answered}");
        assert!(!is_acknowledged(quiet.as_bytes()), "{quiet}");
    }
    // The server may answer these requests despite `noreply` or `q`, because they have several keys
    // or report an item that was found or created.
    for answered in
        ["gat 9 k noreply\r\n", "gats 9 noreply\r\n", "mg k T9 q\r\n", "ma k q\r\n", "ma k N9 q\r\n"]
    {
        assert!(is_acknowledged(answered.as_bytes()), "{answered}");
    }
    let extras = |opcode: u8| match opcode {
        0x05 | 0x06 | 0x15 | 0x16 => 20,
        0x01..=0x03 | 0x11..=0x13 => 8,
        0x1c..=0x1e | 0x23 | 0x24 => 4,
        _ => 0,
    };
    // Over UDP, memcached 1.6.18 answers quiet binary commands with an empty datagram.
    let writes = [1, 2, 3, 4, 5, 6, 14, 15].into_iter().chain(0x11..=0x16).chain([0x19, 0x1a, 0x1c]);
    for opcode in writes.chain([0x1d, 0x1e, 0x23, 0x24]) {
        assert!(is_acknowledged(&binary(opcode, &vec![0; extras(opcode)], b"k", b"")), "{opcode}");
    }
}

/// The prepared reply is valid only for a text `get` of one key. The bytes before the prepared
/// reply contain the request id.
#[test]
fn only_get_of_one_key_in_text_has_the_prepared_reply() {
    let memcached = Memcached::new(32);
    let front = |command: &[u8]| {
        let payload = [b"\xab\xcd\0\0\0\x01\0\0", command].concat();
        let (ask, mut out) = (memcached.read(Datagram::whole(&payload)).unwrap(), [9; 16]);
        let length = memcached.write_front(&Request { payload: &payload, ask: &ask }, &mut out)?;
        Some(out[..length].to_vec())
    };
    assert_eq!(front(b"get k\r\n").unwrap(), b"\xab\xcd\0\0\0\x01\0\0");
    let binary_get = [&[0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1][..], &[0; 12], b"k"].concat();
    for other in
        [&b"get k l\r\n"[..], b"gets k\r\n", b"mg k v\r\n", b"gat 5 k\r\n", b"delete k\r\n", &binary_get]
    {
        assert_eq!(front(other), None, "{}", other.escape_ascii());
    }
    let stored = |bytes| Stored { flags: u32::MAX, cas: 1, bytes };
    let prepared = memcached.prepare_hit(b"key", &stored(b"value"), &mut [0; 64]).unwrap();
    assert_eq!(prepared, Prepared { length: 36, key: 6, value: 24 });
    // With its frame, the longest prepared reply has the length of the longest datagram that a
    // server sends.
    let longest = 1_392 - b"VALUE k 4294967295 1359\r\n\r\nEND\r\n".len();
    let (mut out, zeros) = ([0; 2_000], vec![0; longest + 1]);
    assert!(memcached.prepare_hit(b"k", &stored(&zeros[1..]), &mut out).is_some());
    assert_eq!(memcached.prepare_hit(b"k", &stored(&zeros), &mut out), None);
    assert_eq!(memcached.prepare_hit(b"key", &stored(b"value"), &mut [0; 35]), None);
}
