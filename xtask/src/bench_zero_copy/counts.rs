//! Counts of executed instructions, as written by the QEMU plugin `xtask/zero-copy/count.c`.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

/// A block of instructions that are always executed together.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Block {
    address: u64,
    /// The offset of each instruction from the first instruction of the block. The flag [`STRING`]
    /// marks string instructions with a repeat prefix.
    distances: Vec<u16>,
}

/// The number of executions of each block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(Vec<(Arc<Block>, u64)>);

/// The number of executions of each instruction.
#[derive(Debug, Default)]
pub(crate) struct Instructions {
    /// All instructions except those in `strings`, by their address.
    pub(crate) plain: HashMap<u64, u64>,
    /// The iterations of string instructions with a repeat prefix. A processor executes many
    /// iterations at once, so the number of iterations is not a measure of time.
    pub(crate) strings: HashMap<u64, u64>,
}

impl Counts {
    /// Parses the file that the plugin wrote.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        let mut counts = Vec::new();
        while !rest.is_empty() {
            let (address, count) =
                (u64::from_le_bytes(take(&mut rest)?), u64::from_le_bytes(take(&mut rest)?));
            let length = u32::from_le_bytes(take(&mut rest)?);
            let distances = (0..length).map(|_| Ok(u16::from_le_bytes(take(&mut rest)?)));
            let distances = distances.collect::<Result<_>>()?;
            counts.push((Arc::new(Block { address, distances }), count));
        }
        Ok(Self(counts))
    }

    /// Returns the executions since an earlier snapshot of the same VM.
    pub(crate) fn since(self, earlier: &Self) -> Result<Self> {
        ensure!(self.0.len() >= earlier.0.len(), "the later snapshot has fewer blocks");
        let mut since = Vec::new();
        for (n, (block, count)) in self.0.into_iter().enumerate() {
            let executed = match earlier.0.get(n) {
                Some((known, earlier)) => {
                    ensure!(*known == block, "block {n} has changed between two snapshots");
                    count.checked_sub(*earlier).context("a counter went backwards")?
                }
                None => count,
            };
            if executed > 0 {
                since.push((block, executed));
            }
        }
        Ok(Self(since))
    }

    /// Subtracts the executions of `turns` idle iterations of a polling loop, which are measured in
    /// `idle`. The number of iterations in `idle` is the number of executions of its most frequent
    /// user-space block.
    pub(crate) fn without_polling(&mut self, idle: &Self) {
        let user = |(block, _): &&(Arc<Block>, u64)| block.address < KERNEL_STARTS;
        let Some((marker, per_period)) = idle.0.iter().filter(user).max_by_key(|(_, count)| *count) else {
            return;
        };
        let Some((_, turns)) = self.0.iter().find(|(block, _)| block == marker) else { return };
        self.subtract(idle, (*turns as f64) / (*per_period as f64));
    }

    /// Subtracts `share` times the executions in `idle`.
    pub(crate) fn subtract(&mut self, idle: &Self, share: f64) {
        // QEMU also runs the beginning of a block as a block of its own.
        let in_idle: HashMap<Arc<Block>, f64> =
            idle.0.iter().map(|(block, count)| (Arc::clone(block), *count as f64 * share)).collect();
        for (block, count) in &mut self.0 {
            if let Some(idle) = in_idle.get(block) {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "far below 2^52")]
                let idle = idle.round().max(0.0) as u64;
                *count = count.saturating_sub(idle);
            }
        }
    }

    /// Returns the number of times that execution entered the block at this address.
    pub(crate) fn entries(&self, is_entry: impl Fn(u64) -> bool) -> u64 {
        self.0.iter().filter(|(block, _)| is_entry(block.address)).map(|(_, count)| count).sum()
    }

    /// Returns the executions of each instruction.
    pub(crate) fn instructions(&self) -> Instructions {
        let mut all = Instructions::default();
        for (block, count) in &self.0 {
            for distance in &block.distances {
                let kind = if distance & STRING == 0 { &mut all.plain } else { &mut all.strings };
                *kind.entry(block.address + u64::from(distance & !STRING)).or_default() += count;
            }
        }
        all
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let (bytes, after) = rest.split_first_chunk().context("the counters are truncated")?;
    *rest = after;
    Ok(*bytes)
}

/// Kernel addresses are in the upper half of the address space.
pub(crate) const KERNEL_STARTS: u64 = 1 << 63;
const STRING: u16 = 0x8000;

#[cfg(test)]
mod tests {
    use super::*;

    fn file(blocks: &[(u64, u64, &[u16])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (address, count, distances) in blocks {
            bytes.extend(address.to_le_bytes().into_iter().chain(count.to_le_bytes()));
            bytes.extend(u32::try_from(distances.len()).expect("few").to_le_bytes());
            bytes.extend(distances.iter().flat_map(|distance| distance.to_le_bytes()));
        }
        bytes
    }

    impl Counts {
        /// Returns counts of blocks with an address, a number of executions, and the distances of
        /// the instructions.
        pub(crate) fn of(blocks: &[(u64, u64, &[u16])]) -> Self {
            Self::parse(&file(blocks)).expect("complete")
        }
    }

    #[test]
    fn difference_counts_each_instruction_of_each_block() {
        let before = Counts::of(&[(100, 5, &[0, 2]), (200, 1, &[0])]);
        let after = Counts::of(&[(100, 8, &[0, 2]), (200, 1, &[0]), (102, 4, &[0, STRING | 3])]);
        let all = after.since(&before).expect("same blocks").instructions();
        assert_eq!(all.plain, HashMap::from([(100, 3), (102, 3 + 4)]));
        assert_eq!(all.strings, HashMap::from([(105, 4)]));
    }

    #[test]
    fn truncated_file_and_changed_blocks_are_errors() {
        let bytes = file(&[(100, 5, &[0, 2])]);
        for length in 1..bytes.len() {
            assert!(Counts::parse(&bytes[..length]).is_err(), "{length}");
        }
        assert!(Counts::of(&[(100, 5, &[0])]).since(&Counts::of(&[(100, 4, &[0, 2])])).is_err());
        assert!(Counts::of(&[(100, 4, &[0])]).since(&Counts::of(&[(100, 5, &[0])])).is_err());
    }

    #[test]
    fn polling_is_subtracted_by_the_number_of_turns() {
        let idle =
            Counts::of(&[(10, 100, &[0]), (20, 50, &[0]), (20, 1, &[0, 2]), (KERNEL_STARTS, 400, &[0])]);
        let mut burst = Counts::of(&[(10, 10, &[0]), (20, 9, &[0]), (30, 7, &[0])]);
        burst.without_polling(&idle);
        assert_eq!(burst.instructions().plain, HashMap::from([(10, 0), (20, 4), (30, 7)]));
    }
}
