//! A piece of a text that is written from its beginning, of which the rest is counted alone.

use std::fmt;

/// Bytes `from` and on of what is put, as many as `out` holds.
#[derive(Debug)]
pub(super) struct Window<'a> {
    out: &'a mut [u8],
    from: usize,
    total: usize,
}

impl<'a> Window<'a> {
    pub(super) fn new(out: &'a mut [u8], from: usize) -> Self {
        Self { out, from, total: 0 }
    }

    /// All bytes that were put, in the window or not.
    pub(super) const fn total(&self) -> usize {
        self.total
    }

    /// All bytes that were put, if all are in `out`, which began with the first.
    pub(super) fn whole(&self) -> Option<usize> {
        (self.from == 0 && self.total <= self.out.len()).then_some(self.total)
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        let skipped = self.from.saturating_sub(self.total).min(bytes.len());
        let at = self.total.saturating_sub(self.from);
        self.total += bytes.len();
        let (Some(bytes), Some(room)) = (bytes.get(skipped..), self.out.get_mut(at..)) else { return };
        room.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    }
}

/// Numbers, which take no memory to format.
impl fmt::Write for Window<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}
