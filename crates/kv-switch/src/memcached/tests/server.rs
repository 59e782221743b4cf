//! A simulated server that answers upstream requests like memcached 1.6.18. The test
//! `tests/servers.rs` uses real servers.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) flags: u32,
    pub(super) cas: u64,
    pub(super) value: Vec<u8>,
    /// `true` if the value was stored under the base64 form of its key.
    pub(super) is_base64: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Server(pub(super) HashMap<Vec<u8>, Kept>);

impl Server {
    /// Returns the answers to an upstream request. Each key has its own answer, which is a list of
    /// datagrams. Panics if the datagram is not an upstream request.
    pub(super) fn answer(&self, datagram: &[u8]) -> Vec<Vec<Vec<u8>>> {
        assert_eq!(datagram[2..8], [0, 0, 0, 1, 0, 0]);
        let mut answers = Vec::new();
        let mut rest = &datagram[8..];
        while !rest.is_empty() {
            let (said, behind) = if rest[0] == 0x80 { self.getk(rest) } else { self.mg(rest) };
            answers.push(split(&datagram[..2], &said));
            rest = behind;
        }
        answers
    }

    fn getk<'a>(&self, command: &'a [u8]) -> (Vec<u8>, &'a [u8]) {
        let length = usize::from(command[3]);
        let start = [0x80, 0x0c, 0, command[3], 0, 0, 0, 0, 0, 0, 0, command[3]];
        assert_eq!((&command[..12], &command[16..24]), (&start[..], &[0; 8][..]));
        let (opaque, key, behind) = (&command[12..16], &command[24..24 + length], &command[24 + length..]);
        let said = match self.0.get(key) {
            None => {
                [&[0x81, 0x0c, 0, command[3], 0, 0, 0, 1, 0, 0, 0, command[3]], opaque, &[0; 8], key].concat()
            }
            Some(kept) => {
                let body = u32::try_from(4 + length + kept.value.len()).unwrap().to_be_bytes();
                let header = [&[0x81, 0x0c, 0, command[3], 4, 0, 0, 0], &body[..], opaque].concat();
                let (cas, flags) = (kept.cas.to_be_bytes(), kept.flags.to_be_bytes());
                [&header, &cas[..], &flags, key, &kept.value].concat()
            }
        };
        (said, behind)
    }

    fn mg<'a>(&self, command: &'a [u8]) -> (Vec<u8>, &'a [u8]) {
        let stop = command.iter().position(|&byte| byte == b'\n').unwrap();
        let line = command[..stop].strip_suffix(b"\r").unwrap();
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        assert_eq!((words[0], &words[2..5]), (&b"mg"[..], &[&b"k"[..], b"f", b"v"][..]));
        assert!(words[5..].iter().all(|word| b"OcT".contains(&word[0])));
        let kept = self.0.get(words[1]);
        let mut said = kept.map_or(b"EN".to_vec(), |kept| format!("VA {}", kept.value.len()).into_bytes());
        for flag in &words[2..] {
            let written = match (flag[0], kept) {
                (b'O', _) => flag.to_vec(),
                (b'k', Some(kept)) if kept.is_base64 => {
                    format!("k{} b", STANDARD.encode(words[1])).into_bytes()
                }
                (b'k', _) => [b"k", words[1]].concat(),
                (b'f', Some(kept)) => format!("f{}", kept.flags).into_bytes(),
                (b'c', Some(kept)) => format!("c{}", kept.cas).into_bytes(),
                _ => continue,
            };
            said.extend([b" ", &written[..]].concat());
        }
        said.extend(b"\r\n");
        if let Some(kept) = kept {
            said.extend([&kept.value[..], b"\r\n"].concat());
        }
        (said, &command[stop + 1..])
    }
}

fn split(id: &[u8], said: &[u8]) -> Vec<Vec<u8>> {
    let pieces = said.chunks(1_392);
    let total = u16::try_from(pieces.len()).unwrap().to_be_bytes();
    (0_u16..)
        .zip(pieces)
        .map(|(sequence, piece)| [id, &sequence.to_be_bytes(), &total, &[0, 0], piece].concat())
        .collect()
}
