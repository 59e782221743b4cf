//! Generates memcached requests with random errors.
//!
//! The generator changes a few bytes of valid requests, so most of the datagrams are almost valid.

/// The bytes that mutations insert: separators of words and lines, digits, command characters, and
/// extreme length values.
const TELLING: &[u8] = b"\0\n\r  \t-+0159bkmqsNT\x7f\x80\xff";
/// The words that mutations insert, because they change the meaning of a command line.
const WORDS: [&[u8]; 12] = [
    b"noreply",
    b" 0",
    b" -1",
    b" 5",
    b"\r\n",
    b"get k\r\n",
    b" b",
    b" q",
    b" k",
    b" O9",
    b"flush_all\r\n",
    b" 18446744073709551616",
];
/// The maximum length of a generated datagram in bytes.
const LONGEST: usize = 1_400;

/// An endless generator of mutated requests.
#[derive(Debug)]
pub(crate) struct Mutations {
    random: u64,
    requests: Vec<Vec<u8>>,
    datagram: Vec<u8>,
}

impl Mutations {
    /// Creates a generator. The seed must not be 0.
    pub(crate) const fn new(seed: u64, requests: Vec<Vec<u8>>) -> Self {
        Self { random: seed, requests, datagram: Vec::new() }
    }

    /// Returns a valid request with one to four mutations. The first `kept` bytes stay unchanged.
    pub(crate) fn next(&mut self, kept: usize) -> &[u8] {
        let which = self.below(self.requests.len());
        self.datagram.clear();
        self.datagram.extend_from_slice(&self.requests[which]);
        for _ in 0..=self.below(4) {
            self.spoil(kept);
        }
        self.datagram.truncate(LONGEST);
        &self.datagram
    }

    fn spoil(&mut self, kept: usize) {
        let length = self.datagram.len();
        let at = kept + self.below((length + 1).saturating_sub(kept).max(1));
        let to = at + self.below((length + 1).saturating_sub(at).clamp(1, 12));
        let (byte, word) = (TELLING[self.below(TELLING.len())], WORDS[self.below(WORDS.len())]);
        match self.below(8) {
            0 if at < length => self.datagram[at] = byte,
            1 if at < length => self.datagram[at] ^= 1 << self.below(8),
            2 if at < length => self.datagram[at] = self.datagram[at].wrapping_add(1),
            3 => drop(self.datagram.splice(at..at, [byte])),
            4 => drop(self.datagram.splice(at..to, [])),
            5 => drop(self.datagram.splice(at..at, word.iter().copied())),
            6 => self.datagram.extend_from_within(at..to),
            // Combines the start of one request with the end of another.
            7 if self.below(4) == 0 => {
                let other = self.below(self.requests.len());
                let from = kept + self.below(self.requests[other].len() - kept);
                self.datagram.truncate(at);
                self.datagram.extend_from_slice(&self.requests[other][from..]);
            }
            _ => self.datagram.truncate(at),
        }
    }

    /// Returns a pseudorandom number below `end` from an xorshift64* generator.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let high = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(high).unwrap_or_default() % end
    }
}
