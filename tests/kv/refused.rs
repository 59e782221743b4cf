//! Tests that invalid requests are dropped for the right reason and do not reach a server.

use std::net::SocketAddr;

use testbed::{QueryClient, VIP_V4};

use crate::scene::{BOUND, PORT, SILENCE, Scene, config};

// Promise: keyed-requests-only
#[test]
fn invalid_requests_are_dropped_by_reason() {
    let scene = Scene::new(|bed| config(bed, ", max_keys = 3, gather = false"));
    let client = scene.client(true);
    let frame = |total: u8| [0, 1, 0, 0, 0, total, 0, 0];
    let commands: [(&str, &[u8]); 8] = [
        ("kv_unknown_verb", b"hello world\r\n"),
        ("kv_administrative", b"flush_all\r\n"),
        ("kv_administrative", b"stats\r\n"),
        ("kv_wrong_length", b"set key 0 0 9\r\nshort\r\n"),
        ("kv_several_commands", b"get a\r\nget b\r\n"),
        ("kv_key_too_long", &[b"get ".as_slice(), &[b'k'; 251], b"\r\n"].concat()),
        ("kv_too_many_keys", b"get a b c d\r\n"),
        ("kv_split", b"get a b c\r\n"),
    ];
    for (_, command) in commands {
        client.send(command);
    }
    client.send_plainly(&[&frame(2)[..], b"get a\r\n"].concat());
    client.send_plainly(b"\0\x01");
    let vip = SocketAddr::new(VIP_V4, PORT);
    let low = QueryClient::from_port(&scene.bed.client.ns, vip, 1023);
    assert_eq!(low.ask_within(b"get a\r\n", SILENCE), None);
    let reflector = QueryClient::from_port(&scene.bed.client.ns, vip, PORT);
    assert_eq!(reflector.ask_within(b"get a\r\n", SILENCE), None);
    let stranger = QueryClient::new(&scene.bed.router, vip);
    assert_eq!(stranger.ask_within(b"get a\r\n", SILENCE), None);
    assert_eq!(client.ask_within(b"get a\r\n", BOUND).as_deref(), Some(b"END\r\n".as_slice()));
    scene.drops_become(&[
        ("kv_unknown_verb", 1),
        ("kv_administrative", 2),
        ("kv_wrong_length", 1),
        ("kv_several_commands", 1),
        ("kv_key_too_long", 1),
        ("kv_too_many_keys", 1),
        ("kv_split", 1),
        ("kv_total_not_one", 1),
        ("kv_short_frame", 1),
        ("kv_source_port", 2),
        ("kv_client", 1),
    ]);
}
