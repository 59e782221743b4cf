//! A strict parser for replies, which parses them as a client would. The parser shares no code with
//! the writers.

/// A value in a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// The key. The key is empty if a binary answer contains no key.
    pub(crate) key: Vec<u8>,
    pub(crate) flags: u32,
    pub(crate) cas: u64,
    pub(crate) value: Vec<u8>,
    pub(crate) opaque: [u8; 4],
}

/// Joins the datagrams of one reply, and checks their sequence numbers, totals and sizes.
pub(crate) fn joined(id: [u8; 2], datagrams: &[Vec<u8>]) -> Vec<u8> {
    let total = u16::try_from(datagrams.len()).unwrap().to_be_bytes();
    let mut bytes = Vec::new();
    for (sequence, datagram) in (0_u16..).zip(datagrams) {
        let sequence = sequence.to_be_bytes();
        assert_eq!(datagram[..8], [id[0], id[1], sequence[0], sequence[1], total[0], total[1], 0, 0]);
        let is_last = bytes.len() / 1_392 + 1 == datagrams.len();
        assert!(if is_last { (9..=1_400).contains(&datagram.len()) } else { datagram.len() == 1_400 });
        bytes.extend_from_slice(&datagram[8..]);
    }
    bytes
}

/// Parses a text reply. Keys may contain CR, but no space.
pub(crate) fn text(mut reply: &[u8], has_cas: bool) -> Vec<Hit> {
    let mut hits = Vec::new();
    while reply != b"END\r\n" {
        let stop = reply
            .windows(2)
            .position(|pair| pair == b"\r\n")
            .expect("the reply must have another line or END");
        let stop = if reply[stop..].starts_with(b"\r\r\n") { stop + 1 } else { stop };
        let words: Vec<&[u8]> = reply[..stop].split(|&byte| byte == b' ').collect();
        assert_eq!((words[0], words.len()), (&b"VALUE"[..], if has_cas { 5 } else { 4 }));
        let number = |word: &[u8]| {
            let word = String::from_utf8(word.to_vec()).unwrap();
            let number = word.parse::<u64>().unwrap();
            assert_eq!(number.to_string(), word);
            number
        };
        let behind = &reply[stop + 2..];
        let (value, behind) = behind.split_at(usize::try_from(number(words[3])).unwrap());
        hits.push(Hit {
            key: words[1].to_vec(),
            flags: u32::try_from(number(words[2])).unwrap(),
            cas: words.get(4).map_or(0, |word| number(word)),
            value: value.to_vec(),
            opaque: [0; 4],
        });
        reply = behind.strip_prefix(b"\r\n").expect("CR LF must follow the value");
    }
    hits
}

/// Parses the reply to a batch whose NOOP has the opaque `noop`.
pub(crate) fn batch(mut reply: &[u8], noop: [u8; 4]) -> Vec<Hit> {
    let mut hits = Vec::new();
    loop {
        let (header, behind) = reply.split_at(24);
        let number = |from: usize, to: usize| {
            header[from..to].iter().fold(0, |sum, &byte| sum * 256 + u64::from(byte))
        };
        assert_eq!((header[0], number(5, 8)), (0x81, 0), "the reply must be a success response");
        let [key, extras, body] =
            [number(2, 4), number(4, 5), number(8, 12)].map(|n| usize::try_from(n).unwrap());
        let opaque = header[12..16].try_into().unwrap();
        if header[1] == 0x0a {
            assert_eq!((key, extras, body, opaque, number(16, 24), behind), (0, 0, 0, noop, 0, &b""[..]));
            return hits;
        }
        assert_eq!((extras, header[1] == 0x0d), (4, key > 0));
        assert!(matches!(header[1], 0x09 | 0x0d));
        hits.push(Hit {
            key: behind[4..4 + key].to_vec(),
            flags: u32::from_be_bytes(behind[..4].try_into().unwrap()),
            cas: number(16, 24),
            value: behind[4 + key..body].to_vec(),
            opaque,
        });
        reply = &behind[body..];
    }
}
