//! A writer that stores only one section of its output but counts all bytes.

use std::fmt;

/// A writer that stores its output from offset `from` in `out`, up to the length of `out`, and
/// discards all other bytes.
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

    /// Returns the total number of bytes written, including discarded bytes.
    pub(super) const fn total(&self) -> usize {
        self.total
    }

    /// Returns the number of bytes written, or `None` if any byte was discarded.
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

/// Allows `write!` to format numbers without an allocation.
impl fmt::Write for Window<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}
