//! Seeds with memcached requests. The first two bytes of a seed are the number of bytes that are
//! missing at the end of the datagram, as in a first fragment. The rest of the seed is the request.

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let text: [&[u8]; 15] = [
        b"get foo\r\n",
        b"gets a b  c \r\n",
        b"gat 100 a b\r\n",
        b"set k 0 -1 5 noreply\r\nhello\r\n",
        b"cas k 7 0 2 99\r\nxx\r\n",
        b"append k 0 0 0\r\n\r\n",
        b"delete k 0 noreply\r\n",
        b"incr k 18446744073709551615\r\n",
        b"touch k 60\r\n",
        b"mg aw== b v f t k O1\r\n",
        b"ms k 2 T0 F1 MA C1\r\nhi\r\n",
        b"ma k N0 D5 J10 MI v\r\n",
        b"me k b\r\n",
        b"mn\r\n",
        b"version\r\n",
    ];
    let quiet =
        [binary(0x09, b"", b"a", b""), binary(0x0d, b"", b"bc", b""), binary(0x0a, b"", b"", b"")].concat();
    let binary = [
        binary(0x00, b"", b"foo", b""),
        binary(0x01, &[0; 8], b"foo", b"value"),
        binary(0x05, &[0; 20], b"n", b""),
        binary(0x0e, b"", b"foo", b"x"),
        binary(0x1d, &[0; 4], b"foo", b""),
        binary(0x0a, b"", b"", b""),
        binary(0x0b, b"", b"", b""),
        quiet,
    ];
    let mut seeds: Vec<Vec<u8>> = text.iter().map(|command| datagram(0, command)).collect();
    seeds.extend(binary.iter().map(|command| datagram(0, command)));
    seeds.push(datagram(1_802, b"set key:1 0 0 1800\r\n")); // a first fragment
    seeds
}

fn datagram(missing: u16, command: &[u8]) -> Vec<u8> {
    [&missing.to_be_bytes()[..], b"\x12\x34\0\0\0\x01\0\0", command].concat()
}

fn binary(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap_or_default();
    let body = length(extras) + length(key) + length(value);
    let header = [0x80, opcode, 0, length(key), length(extras), 0, 0, 0, 0, 0, 0, body];
    [&header[..], &[0; 12], extras, key, value].concat()
}
