//! Sends upstream requests to three real memcached servers, and compares the resulting replies with
//! those of one server that has all keys.
//!
//! The test needs root and memcached. Run it with `cargo test -p sluicegate-kv-switch --test
//! servers`. The servers run in a network namespace that is removed when the test ends.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

#[path = "../src/memcached/tests/reader.rs"]
mod reader;

use std::net::UdpSocket;
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kv_switch::{
    Application, Arrival, Copied, Datagram, Fetch, FetchedContent, Gather, KeyRoom, Memcached, OwnId, Place,
    Progress, Request, ShortLife, Shortened,
};
use nix::sched::{CloneFlags, unshare};

const MEMCACHED: Memcached = Memcached::new(32);
/// The addresses of three servers with a third of the keys each, and of one server with all keys.
const SERVERS: [&str; 4] = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"];
const ALL: usize = 3;
/// A timeout that is ten times the start time of a server on two busy cores.
const BOUND: Duration = Duration::from_secs(20);
const NOOP: [u8; 4] = *b"last";

/// A memcached process, and a socket that sends requests to it.
struct Server {
    process: Child,
    socket: UdpSocket,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start(address: &str) -> Self {
        // The option --pdeathsig works only if the server does not change its user.
        let args = ["-u", "root", "-l", address, "-p", "11211", "-U", "11211", "-t", "1", "-m", "64"];
        let process =
            Command::new("setpriv").args(["--pdeathsig", "KILL", "memcached"]).args(args).spawn().unwrap();
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((address, 11_211)).unwrap();
        let server = Self { process, socket };
        let end = Instant::now() + BOUND;
        while !server.is_there() {
            assert!(Instant::now() < end, "memcached at {address} does not respond");
        }
        server
    }

    fn is_there(&self) -> bool {
        self.socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        // The first call can return an error from an earlier send, because the server was not up.
        let _ = self.socket.send(&framed(b"version\r\n"));
        let mut room = [0; 64];
        let is_there =
            self.socket.recv(&mut room).is_ok_and(|length| room[8..length].starts_with(b"VERSION"));
        // Discards the answers to earlier requests.
        while is_there && self.socket.recv(&mut room).is_ok() {}
        self.socket.set_read_timeout(Some(BOUND)).unwrap();
        is_there
    }

    fn receive(&self) -> Vec<u8> {
        let mut room = [0; 2_048];
        let length = self.socket.recv(&mut room).expect("an answer");
        room[..length].to_vec()
    }

    /// Sends a command and returns its answer without the frame. The answer must be one datagram.
    fn ask(&self, command: &[u8]) -> Vec<u8> {
        self.socket.send(&framed(command)).unwrap();
        self.receive()[8..].to_vec()
    }

    /// Sends a client request and returns the whole answer, joined from all its datagrams.
    fn whole(&self, payload: &[u8]) -> Vec<u8> {
        self.socket.send(payload).unwrap();
        let mut bytes = Vec::new();
        let is_over = |bytes: &[u8]| {
            bytes.ends_with(b"END\r\n") && payload[8] != 0x80
                || bytes.len() >= 24 && bytes[bytes.len() - 24..][..2] == [0x81, 0x0a]
        };
        while !is_over(&bytes) {
            bytes.extend(&self.receive()[8..]);
        }
        bytes
    }
}

fn framed(command: &[u8]) -> Vec<u8> {
    [b"\x12\x34\0\0\0\x01\0\0", command].concat()
}

/// Starts the servers and stores the keys `key0` to `key39`, some of them with long values. Keys
/// that begin with `no` are missing. The last letter of a key selects its server.
fn servers() -> Vec<Server> {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let addresses = SERVERS.map(|address| format!("addr add {address}/32 dev lo"));
    for arguments in addresses.iter().map(String::as_str).chain(["link set lo up"]) {
        let status = Command::new("ip").args(arguments.split_whitespace()).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    }
    let servers: Vec<Server> = SERVERS.iter().map(|address| Server::start(address)).collect();
    for number in 0..40_usize {
        let key = format!("key{number}");
        let value = match number % 5 {
            0 => Vec::new(),
            1 => b"END\r\nVALUE x 0 1\r\n\0\xff".to_vec(),
            2 => vec![b'v'; 1_200],
            _ => number.to_string().into_bytes(),
        };
        let line = format!("set {key} {} 0 {}\r\n", number * 107_374_182, value.len());
        for server in [owner(key.as_bytes()), ALL] {
            assert_eq!(servers[server].ask(&[line.as_bytes(), &value, b"\r\n"].concat()), b"STORED\r\n");
        }
    }
    // The server reports the base64 form of this key in answers to `mg`, but not to `get`.
    for server in [owner(b"k"), ALL] {
        assert_eq!(servers[server].ask(b"ms aw== 2 b F9\r\nhi\r\n"), b"HD\r\n");
    }
    servers
}

fn owner(key: &[u8]) -> usize {
    usize::from(key[key.len() - 1]) % 3
}

/// Returns the reply that results from the answers of the three servers.
fn gathered(servers: &[Server], payload: &[u8], nonce: u64) -> Vec<u8> {
    let ask = MEMCACHED.read(Datagram::whole(payload)).unwrap();
    let request = Request { payload, ask: &ask };
    let part_of = |key: &[u8]| u8::try_from(owner(key)).ok();
    let mut gather = Gather::new(&MEMCACHED, &request, &mut |_, key| part_of(key)).unwrap();
    let parts: Vec<u8> = (0..3).filter(|&part| gather.waits_for(part)).collect();
    let own = |part: u8| OwnId { request: 700 + u16::from(part), nonce: nonce + u64::from(part) };
    for &part in &parts {
        let mut out = [0; 4_096];
        let length = MEMCACHED.write_part(&request, &mut gather.part(part), own(part), &mut out).unwrap();
        servers[usize::from(part)].socket.send(&out[..length]).unwrap();
    }
    let (mut frames, mut last) = (Vec::new(), Progress::Waiting);
    for &part in &parts {
        while gather.waits_for(part) {
            let datagram = servers[usize::from(part)].receive();
            assert_eq!(MEMCACHED.answer_id(&datagram), Some(own(part).request));
            let mut room = KeyRoom::default();
            let answer = MEMCACHED.read_answer(&request, own(part), &datagram, &mut room);
            let answer = answer.unwrap_or_else(|error| panic!("{error}: {}", datagram.escape_ascii()));
            let frame = u32::try_from(frames.len()).unwrap();
            last = gather.answer(&MEMCACHED, &request, &Arrival { part, frame, answer });
            frames.push(datagram);
        }
    }
    assert_eq!(last, Progress::Complete);
    let found = |key| {
        let Place { frame, value, .. } = gather.place(key)?;
        Some(value.within(&frames[usize::try_from(frame).unwrap()]))
    };
    let total = MEMCACHED.reply_datagrams(&request, &found).unwrap();
    let datagrams: Vec<Vec<u8>> = (0..total)
        .map(|number| {
            let mut out = [0; 1_400];
            let length = MEMCACHED.write_reply(&request, &found, number, &mut out).unwrap();
            out[..length].to_vec()
        })
        .collect();
    reader::joined([0x12, 0x34], &datagrams)
}

/// Writes a binary batch of reads. Every second answer contains its key.
fn batch(keys: &[Vec<u8>]) -> Vec<u8> {
    let header = |opcode: u8, key: &[u8], opaque: [u8; 4]| {
        let length = u8::try_from(key.len()).unwrap();
        [&[0x80, opcode, 0, length, 0, 0, 0, 0, 0, 0, 0, length], &opaque[..], &[0; 8], key].concat()
    };
    let reads = (0..)
        .zip(keys)
        .map(|(number, key)| header([0x09, 0x0d][number % 2], key, [7, 7, 7, u8::try_from(number).unwrap()]));
    framed(&[reads.collect::<Vec<_>>().concat(), header(0x0a, b"", NOOP)].concat())
}

/// Returns lists of short and long keys, some of them missing or repeated.
fn lists() -> Vec<Vec<Vec<u8>>> {
    let key = |number: usize| match number % 7 {
        6 => format!("no{number}").into_bytes(),
        _ => format!("key{}", number % 40).into_bytes(),
    };
    let mut lists: Vec<Vec<Vec<u8>>> =
        (0..40).map(|from| (from..from + 2 + from % 31).map(key).collect()).collect();
    lists.push(vec![b"no1".to_vec(), b"no2".to_vec()]);
    lists.push(vec![b"k".to_vec(), b"key1".to_vec(), b"k".to_vec()]);
    lists.push((0..32).map(|number| format!("key{number}").into_bytes()).collect());
    lists.push((0..32).map(|number| format!("key{}", number % 3).into_bytes()).collect());
    lists
}

#[test]
fn a_reply_of_three_servers_is_that_of_one_with_all_keys() {
    let servers = servers();
    for (number, keys) in (1..).zip(lists()) {
        let names = keys.join(&b' ');
        let text = |verb: &str| framed(&[verb.as_bytes(), b" ", &names, b"\r\n"].concat());
        for (verb, nonce) in [("get", 1_000), ("gat 100", 2_000)] {
            let (ours, theirs) =
                (gathered(&servers, &text(verb), number * nonce), servers[ALL].whole(&text(verb)));
            assert_eq!(ours, theirs, "{verb} {}", names.escape_ascii());
        }
        // Each server counts versions separately.
        for (verb, nonce) in [("gets", 3_000), ("gats 0", 4_000)] {
            let ours = reader::text(&gathered(&servers, &text(verb), number * nonce), true);
            let theirs = reader::text(&servers[ALL].whole(&text(verb)), true);
            assert_eq!(ours.len(), theirs.len());
            for (ours, mut theirs) in ours.into_iter().zip(theirs) {
                let line = [b"gets ", &ours.key[..], b"\r\n"].concat();
                theirs.cas = reader::text(&servers[owner(&ours.key)].whole(&framed(&line)), true)[0].cas;
                assert_eq!(ours, theirs);
            }
        }
        let payload = batch(&keys);
        let ours = reader::batch(&gathered(&servers, &payload, number * 5_000), NOOP);
        let theirs = reader::batch(&servers[ALL].whole(&payload), NOOP);
        let without = |hits: &[reader::Hit]| -> Vec<reader::Hit> {
            hits.iter().cloned().map(|hit| reader::Hit { cas: 0, ..hit }).collect()
        };
        assert_eq!(without(&ours), without(&theirs));
        assert!(ours.iter().all(|hit| hit.cas > 0));
    }
    // The `gat` command must have set the time to live on the server that stores the key.
    assert_eq!(
        gathered(&servers, &framed(b"gat 100 key3 key4\r\n"), 9),
        servers[ALL].whole(&framed(b"get key3 key4\r\n"))
    );
    let left = servers[owner(b"key3")].ask(b"mg key3 t\r\n");
    let seconds: u32 = String::from_utf8(left).unwrap().trim().strip_prefix("HD t").unwrap().parse().unwrap();
    assert!((1..=100).contains(&seconds), "{seconds}");
}

#[test]
fn a_value_that_one_datagram_does_not_hold_fails_the_request() {
    let servers = servers();
    let value = vec![b'v'; 3_000];
    let server = &servers[owner(b"long")];
    let set = framed(&[b"set long 0 0 3000\r\n", &value[..], b"\r\n"].concat());
    server.socket.send(&set).unwrap();
    assert_eq!(server.receive()[8..], *b"STORED\r\n");
    for payload in [framed(b"get long key1\r\n"), batch(&[b"long".to_vec(), b"key1".to_vec()])] {
        let ask = MEMCACHED.read(Datagram::whole(&payload)).unwrap();
        let request = Request { payload: &payload, ask: &ask };
        let mut gather =
            Gather::new(&MEMCACHED, &request, &mut |number, _| u8::try_from(number).ok()).unwrap();
        let (own, mut out) = (OwnId { request: 3, nonce: 0xabcd }, [0; 512]);
        let length = MEMCACHED.write_part(&request, &mut gather.part(0), own, &mut out).unwrap();
        server.socket.send(&out[..length]).unwrap();
        let mut room = KeyRoom::default();
        let datagram = server.receive();
        let answer = MEMCACHED.read_answer(&request, own, &datagram, &mut room).unwrap();
        assert_eq!(
            gather.answer(&MEMCACHED, &request, &Arrival { part: 0, frame: 0, answer }),
            Progress::Failed
        );
        for _ in 0..2 {
            let datagram = server.receive();
            let answer = MEMCACHED.read_answer(&request, own, &datagram, &mut room).map(drop);
            assert_eq!(answer, Err(kv_switch::NoAnswer::Continuation));
        }
    }
}

/// Returns how many seconds the value of a key remains stored. Returns `None` if the key is
/// missing, and -1 if the value does not expire.
fn left(server: &Server, key: &str) -> Option<i64> {
    server.socket.send(&framed(format!("mg {key} t\r\n").as_bytes())).unwrap();
    let said = server.receive();
    let line = std::str::from_utf8(&said[8..]).unwrap().trim_end();
    // The answer for an item that `mg N` created contains further flags.
    line.strip_prefix("HD t").map(|rest| rest.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn what_a_shortened_request_stores_lives_as_long_and_no_longer() {
    let servers = servers();
    let server = &servers[0];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let life = ShortLife { seconds: 1_000, now: u32::try_from(now).unwrap() };
    let said = |command: &[u8]| {
        let payload = framed(command);
        let ask = MEMCACHED.read(Datagram::whole(&payload)).unwrap();
        let mut out = [0; 256];
        let shortened = MEMCACHED.shorten_life(&Request { payload: &payload, ask: &ask }, life, &mut out);
        let sent = if let Shortened::To(length) = shortened { &out[..length] } else { &payload[..] };
        server.socket.send(sent).unwrap();
        server.receive()[8..].to_vec()
    };
    for time in ["0", "1000", "1001", "2592000", &(now + 36_000).to_string()] {
        for (command, answer, key) in [
            (format!("set a 7 {time} 2\r\nab\r\n"), "STORED\r\n", "a"),
            (format!("replace a 7 {time} 2\r\nab\r\n"), "STORED\r\n", "a"),
            (format!("ms b 2 T{time}\r\nab\r\n"), "HD\r\n", "b"),
            ("ms b 2\r\nab\r\n".into(), "HD\r\n", "b"),
            (format!("mg c N{time} v\r\n"), "VA 0 W\r\n\r\n", "c"),
            (format!("ma d N{time} J5\r\n"), "HD\r\n", "d"),
            (format!("touch a {time}\r\n"), "TOUCHED\r\n", "a"),
            (format!("mg b T{time}\r\n"), "HD\r\n", "b"),
            (format!("gat {time} a\r\n"), "VALUE a 7 2\r\nab\r\nEND\r\n", "a"),
        ] {
            let answered = String::from_utf8(said(command.as_bytes())).unwrap();
            assert_eq!(answered, answer, "{command}");
            let left = left(server, key).unwrap();
            assert!((900..=1_000).contains(&left), "{command}: {left} s");
        }
        said(b"md c\r\n");
        said(b"md d\r\n");
    }
    // Shorter times are not changed, and expired items are missing.
    said(b"set a 0 500 2\r\nab\r\n");
    assert!((400..=500).contains(&left(server, "a").unwrap()));
    said(b"set a 0 -1 2\r\nab\r\n");
    assert_eq!(left(server, "a"), None);
    let set = [&[0x80, 1, 0, 1, 8, 0, 0, 0, 0, 0, 0, 11][..], &[0; 12], &[0; 8], b"eab"].concat();
    assert_eq!(said(&set)[..2], [0x81, 1]);
    assert!((900..=1_000).contains(&left(server, "e").unwrap()));
}

fn fetched(server: &Server, key: &[u8], known: Option<u64>, nonce: u64) -> (Vec<u8>, FetchedContent) {
    let (fetch, own, mut out) = (Fetch::new(key, known, false), OwnId { request: 77, nonce }, [0; 1_400]);
    let length = MEMCACHED.write_fetch(&fetch, own, &mut out).unwrap();
    server.socket.send(&out[..length]).unwrap();
    let (datagram, mut room) = (server.receive(), KeyRoom::default());
    let fetched = MEMCACHED.read_fetched(&fetch, own, &datagram, &mut room);
    let fetched = fetched.unwrap_or_else(|error| panic!("{error}: {}", datagram.escape_ascii()));
    assert_eq!(fetched.key, key);
    let content = fetched.content;
    (datagram, content)
}

/// Formats a reply without the remaining seconds, because they change during the test.
fn untimed(reply: &[u8]) -> String {
    let words = reply.split(|byte| *byte == b' ').map(|word| word.escape_ascii().to_string());
    let untimed =
        words.map(|word| match word.strip_prefix('t').map(|rest| rest.trim_end_matches("\\r\\n")) {
            Some("99" | "100") => word.replace("100", "99"),
            _ => word,
        });
    untimed.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_reply_from_a_copy_is_the_server_s_own() {
    let server = &servers()[ALL];
    server.ask(b"set short 7 100 5\r\nshort\r\n");
    let mut kinds = vec![framed(b"get KEY\r\n")];
    for flags in ["", " v", " k f c s O31", " v k f c s t O0123456789012345678901234567890", " q v c", " t q"]
    {
        kinds.push(framed(format!("mg KEY{flags}\r\n").as_bytes()));
    }
    for (key, nonce) in [&b"short"[..], b"key0", b"key1", b"key2", b"key3", b"k"].into_iter().zip(1..) {
        let (datagram, content) = fetched(server, key, None, nonce);
        let FetchedContent::Value { value, ttl, is_base64 } = content else { panic!("{content:?}") };
        let mut copied = Copied::new(key, value.within(&datagram));
        (copied.ttl, copied.is_base64) = (ttl, is_base64);
        assert_eq!(is_base64, key == b"k");
        assert_eq!(ttl.is_some(), key == b"short");
        let named = |kind: &Vec<u8>| {
            let text = String::from_utf8(kind[8..].to_vec()).unwrap();
            framed(text.replace("KEY", str::from_utf8(key).unwrap()).as_bytes())
        };
        let mut requests: Vec<Vec<u8>> = kinds.iter().map(named).collect();
        requests.extend(kinds[1..].iter().map(|kind| {
            let text = String::from_utf8(kind[8..].to_vec()).unwrap();
            let written = STANDARD.encode(key);
            framed(text.replace("KEY", &written).replace("\r\n", " b\r\n").as_bytes())
        }));
        requests.extend([0x00, 0x09, 0x0c, 0x0d].map(|opcode| {
            let length = u8::try_from(key.len()).unwrap();
            let header = [0x80, opcode, 0, length, 0, 0, 0, 0, 0, 0, 0, length, 9, 8, 7, 6];
            framed(&[&header[..], &[0; 8], key].concat())
        }));
        for request in requests {
            let (ask, mut out) = (MEMCACHED.read(Datagram::whole(&request)).unwrap(), [0; 1_400]);
            let length = MEMCACHED.write_hit(&Request { payload: &request, ask: &ask }, &copied, &mut out);
            server.socket.send(&request).unwrap();
            let theirs = server.receive();
            assert_eq!(untimed(&out[..length.unwrap()]), untimed(&theirs));
        }
        // Fetches only the version. The version has not changed.
        let (_, content) = fetched(server, key, Some(copied.stored.cas), nonce + 100);
        assert_eq!(content, FetchedContent::Version { cas: copied.stored.cas, ttl });
    }
    let (_, before) = fetched(server, b"key3", Some(1), 300);
    assert_eq!(server.ask(b"append key3 0 0 1\r\nx\r\n"), b"STORED\r\n");
    let (_, after) = fetched(server, b"key3", Some(1), 301);
    let (FetchedContent::Version { cas: before, .. }, FetchedContent::Version { cas: after, .. }) =
        (before, after)
    else {
        panic!("{before:?} {after:?}")
    };
    assert!(after > before);
    assert_eq!(fetched(server, b"no1", None, 302).1, FetchedContent::Nothing);
    assert_eq!(fetched(server, b"no1", Some(3), 303).1, FetchedContent::Nothing);
    // The cache stores neither stale items nor values that exceed one datagram.
    server.ask(b"set stale 0 0 1\r\nx\r\n");
    server.ask(b"md stale I\r\n");
    assert_eq!(fetched(server, b"stale", None, 304).1, FetchedContent::Nothing);
    let long = [&b"set long 0 0 1400\r\n"[..], &[b'v'; 1_400], b"\r\n"].concat();
    assert_eq!(server.ask(&long), b"STORED\r\n");
    assert_eq!(fetched(server, b"long", None, 305).1, FetchedContent::Nothing);
}

/// Sends a replicated write to one server, and returns the reply to the client.
fn replicated(server: &Server, payload: &[u8], nonce: u64, life: Option<ShortLife>) -> Vec<u8> {
    let ask = MEMCACHED.read(Datagram::whole(payload)).unwrap();
    let request = Request { payload, ask: &ask };
    assert!(MEMCACHED.replicated(&request).is_some_and(|replicated| replicated.wants_answer));
    let (own, mut out) = (OwnId { request: 99, nonce }, [0; 2_048]);
    let length = MEMCACHED.write_replica(&request, life, own, &mut out).unwrap();
    assert!(length <= payload.len() + 40, "{} for {}", length, payload.len());
    let copy = MEMCACHED.read(Datagram::whole(&out[..length])).unwrap();
    let mut rooms = [KeyRoom::default(), KeyRoom::default()];
    let [one, other] = &mut rooms;
    assert_eq!(MEMCACHED.key(&out, &copy.first, one), MEMCACHED.key(payload, &ask.first, other));
    server.socket.send(&out[..length]).unwrap();
    let datagram = server.receive();
    let outcome = MEMCACHED.read_outcome(&request, own, &datagram);
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}: {}", datagram.escape_ascii()));
    let length = MEMCACHED.write_outcome(&request, outcome, &mut out).unwrap();
    out[..length].to_vec()
}

#[test]
fn replicated_write_reply_and_value_equal_one_server() {
    let servers = servers();
    let (server, other) = (&servers[0], &servers[1]);
    let binary = |opcode: u8, extras: &[u8], value: &[u8]| {
        let (body, count) = ([extras, b"key", value].concat(), u8::try_from(extras.len()).unwrap());
        let length = u8::try_from(body.len()).unwrap();
        [&[0x80, opcode, 0, 3, count, 0, 0, 0, 0, 0, 0, length, 9, 8, 7, 6][..], &[0; 8], &body].concat()
    };
    let texts: [&[u8]; 28] = [
        b"set key 7 600 2\r\nhi\r\n",
        b"touch key 300\r\n",
        b"set key 4294967295 0 0\r\n\r\n",
        b"delete key\r\n",
        b"delete key\r\n",
        b"touch key 300\r\n",
        b"set key 0 2592001 5\r\nh\r\nij\r\n",
        b"set key 0 100 11\r\nflush_all\r\n\r\n",
        b"delete key 0\r\n",
        b"set key 0 -1 2\r\nhi\r\n",
        b"set key 0 0 2\r\nhi\r\n",
        b"touch key -1\r\n",
        b"ms key 2\r\nhi\r\n",
        b"ms key 2 T100 F9 O12 k\r\nhi\r\n",
        b"ms key 2 k O1234567890123456789012345678901 MS\r\nhi\r\n",
        b"ms key 3 Oa\rb T5 Pa L\r\nhi!\r\n",
        b"mg key T200\r\n",
        b"mg key k T300 O9\r\n",
        b"ms a2V5 2 b\r\nhi\r\n",
        b"ms a2V5 2 b k O4 F3\r\nhi\r\n",
        b"mg a2V5 O4 T100 k b\r\n",
        b"md a2V5 k b O5\r\n",
        b"md a2V5 b k O5\r\n",
        b"mg key k T300 O9\r\n",
        b"md key\r\n",
        b"md key O1 k\r\n",
        b"  set  key  1 2 2\r\nhi\r\n",
        b"set  key  1  200  2 \r\nhi\r\n",
    ];
    let mut all: Vec<Vec<u8>> =
        texts.iter().filter(|text| !text.starts_with(b" ")).map(|text| text.to_vec()).collect();
    all.extend([
        binary(0x01, &[0, 0, 0, 7, 0, 0, 2, 88], b"hi"),
        binary(0x04, &[], b""),
        binary(0x04, &[], b""),
        binary(0x1c, &[0, 0, 1, 0], b""),
        binary(0x01, &[0, 0, 0, 7, 0, 0, 0, 0], b"\r\n"),
        binary(0x1c, &[0, 0, 1, 0], b""),
    ]);
    for (nonce, command) in (1..).zip(all) {
        let payload = framed(&command);
        let ours = replicated(server, &payload, nonce, None);
        other.socket.send(&payload).unwrap();
        let mut theirs = other.receive();
        if theirs[8] == 0x81 {
            theirs[24..32].fill(0); // versions differ between servers
            if theirs[9] == 0x1c && theirs[15] == 0 {
                // The server returns more flags here than its documentation lists.
                theirs.truncate(32);
                (theirs[12], theirs[19]) = (0, 0);
            }
        }
        assert_eq!(
            ours.escape_ascii().to_string(),
            theirs.escape_ascii().to_string(),
            "{}",
            command.escape_ascii()
        );
        let [one, another] = [server, other].map(|server| server.ask(b"mg key v f s t\r\n"));
        assert_eq!(untimed_by_one(&one), untimed_by_one(&another), "{}", command.escape_ascii());
    }
}

/// Formats a reply for comparison, with the remaining seconds rounded to tens.
fn untimed_by_one(reply: &[u8]) -> Vec<String> {
    let text = reply.escape_ascii().to_string();
    let words =
        text.split(' ').map(|word| match word.strip_prefix('t').map(|rest| rest.replace("\\r\\n", " ")) {
            Some(rest) => {
                let (seconds, behind) = rest.split_once(' ').unwrap_or((&rest, ""));
                let seconds: i64 = seconds.parse().unwrap_or(-2);
                format!("t{}{behind}", (seconds + 5) / 10)
            }
            None => word.to_owned(),
        });
    words.collect()
}

#[test]
fn what_stands_in_stores_for_a_short_while_whatever_the_command() {
    let servers = servers();
    let server = &servers[0];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let life = Some(ShortLife { seconds: 1_000, now: u32::try_from(now).unwrap() });
    let set = |time: [u8; 4]| {
        let extras = [&[0, 0, 0, 0][..], &time].concat();
        [&[0x80, 1, 0, 1, 8, 0, 0, 0, 0, 0, 0, 11][..], &[0; 12], &extras, b"aab"].concat()
    };
    let touch = [&[0x80, 0x1c, 0, 1, 4, 0, 0, 0, 0, 0, 0, 5][..], &[0; 12], &[0; 4], b"a"].concat();
    let mut commands: Vec<(Vec<u8>, std::ops::RangeInclusive<i64>)> = vec![
        (b"set a 7 0 2\r\nab\r\n".to_vec(), 990..=1_000),
        (b"set a 7 500 2\r\nab\r\n".to_vec(), 490..=500),
        (b"touch a 0\r\n".to_vec(), 990..=1_000),
        (b"touch a 2592000\r\n".to_vec(), 990..=1_000),
        (b"ms a 2\r\nab\r\n".to_vec(), 990..=1_000),
        (b"ms a 2 T0 F1\r\nab\r\n".to_vec(), 990..=1_000),
        (b"ms a 2 T30 F1\r\nab\r\n".to_vec(), 20..=30),
        (b"mg a T0\r\n".to_vec(), 990..=1_000),
        (set([0; 4]), 990..=1_000),
        (set([0, 0, 0, 30]), 20..=30),
        (touch, 990..=1_000),
    ];
    commands.push((format!("set a 7 {} 2\r\nab\r\n", now + 36_000).into_bytes(), 990..=1_000));
    for (nonce, (command, wanted)) in (1..).zip(commands) {
        replicated(server, &framed(&command), nonce, life);
        let left = left(server, "a").unwrap();
        assert!(wanted.contains(&left), "{}: {left} s", command.escape_ascii());
    }
}

#[test]
fn a_server_s_error_is_a_refusal_and_another_s_answer_is_none() {
    // The second server accepts only values up to 1 KB.
    let servers = servers();
    let small = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "memcached", "-u", "root", "-l", "192.0.2.4", "-p", "11311"])
        .args(["-U", "11311", "-t", "1", "-m", "64", "-I", "1024", "-o", "slab_chunk_max=1024"])
        .spawn()
        .unwrap();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(("192.0.2.4", 11_311)).unwrap();
    let server = Server { process: small, socket };
    let end = Instant::now() + BOUND;
    while !server.is_there() {
        assert!(Instant::now() < end, "memcached does not respond");
    }
    let value = "v".repeat(1_200);
    let set = framed(format!("set a 0 0 1200\r\n{value}\r\n").as_bytes());
    let wanted = "SERVER_ERROR object too large for cache\r\n";
    assert_eq!(replicated(&server, &set, 1, None)[8..], *wanted.as_bytes());
    let meta = framed(format!("ms a 1200 O12 k\r\n{value}\r\n").as_bytes());
    assert_eq!(replicated(&server, &meta, 1, None)[8..], *wanted.as_bytes());
    let header = [0x80, 1, 0, 1, 8, 0, 0, 0, 0, 0, 4, 0xb9, 9, 8, 7, 6];
    let binary = framed(&[&header[..], &[0; 16], b"a", value.as_bytes()].concat());
    let said = replicated(&server, &binary, 1, None);
    assert_eq!(
        (&said[8..10], &said[14..16], &said[20..24]),
        (&[0x81, 1][..], &[0, 3][..], &[9, 8, 7, 6][..])
    );
    // An answer with a different nonce must not acknowledge the request.
    let payload = framed(b"set a 0 0 2\r\nhi\r\n");
    let ask = MEMCACHED.read(Datagram::whole(&payload)).unwrap();
    let request = Request { payload: &payload, ask: &ask };
    let (own, mut out) = (OwnId { request: 9, nonce: 5 }, [0; 100]);
    let length = MEMCACHED.write_replica(&request, None, own, &mut out).unwrap();
    servers[0].socket.send(&out[..length]).unwrap();
    let datagram = servers[0].receive();
    let other = OwnId { nonce: 6, ..own };
    assert_eq!(MEMCACHED.read_outcome(&request, other, &datagram), Err(kv_switch::NoAnswer::OtherNonce));
    assert_eq!(MEMCACHED.read_outcome(&request, own, &datagram), Ok(kv_switch::Outcome::Done));
}
