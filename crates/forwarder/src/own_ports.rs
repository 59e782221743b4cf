//! Which packet thread has which of the ports that requests of the machine's own leave from.
//!
//! Not here: what is asked from them (`pipeline/gather`), who keeps others off them (`datapath`).
//! Invariant: a port is one thread's, on every queue and for the life of the process.

use std::ops::RangeInclusive;

use crate::ThreadId;

/// UDP ports for requests of the machine's own, in equal shares of packet threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnPorts {
    first: u16,
    /// Ports of a thread; at least one.
    share: u16,
    threads: u16,
}

impl OwnPorts {
    /// Of the ports behind the last whole share nobody speaks. `None`: there are more threads than ports.
    #[must_use]
    pub fn new(ports: &RangeInclusive<u16>, threads: u16) -> Option<Self> {
        let threads = threads.max(1);
        let share = u16::try_from(ports.len() / usize::from(threads)).ok()?;
        (share > 0).then_some(Self { first: *ports.start(), share, threads })
    }

    /// A thread's.
    #[must_use]
    pub fn of(&self, thread: ThreadId) -> RangeInclusive<u16> {
        let first = self.first + thread.0.min(self.threads - 1) * self.share;
        first..=first + (self.share - 1)
    }

    /// The thread that has a port; `None`: none has.
    #[must_use]
    #[inline]
    pub fn thread_of(&self, port: u16) -> Option<ThreadId> {
        let thread = port.checked_sub(self.first)? / self.share;
        (thread < self.threads).then_some(ThreadId(thread))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_is_one_threads() {
        for (ports, threads) in [(61_000..=61_255, 1), (61_000..=61_255, 3), (65_530..=65_535, 6), (1..=1, 1)]
        {
            let own = OwnPorts::new(&ports, threads).unwrap();
            let mut owners = vec![0; usize::from(threads)];
            for port in 0..=u16::MAX {
                let owner = own.thread_of(port);
                let holds = (0..threads).map(ThreadId).find(|thread| own.of(*thread).contains(&port));
                assert_eq!(owner, holds, "{port}");
                assert!(owner.is_none() || ports.contains(&port));
                owner.iter().for_each(|thread| owners[usize::from(thread.0)] += 1);
            }
            assert!(owners.iter().all(|count| *count == ports.len() / usize::from(threads)), "{owners:?}");
        }
        assert_eq!(OwnPorts::new(&(61_000..=61_003), 5), None);
    }
}
