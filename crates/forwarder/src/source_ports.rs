//! The source port pool: the UDP ports from which this machine sends upstream requests. Each port
//! belongs to one packet thread for the lifetime of the process, regardless of the queue on which
//! replies arrive. `pipeline/gather` sends upstream requests, and `datapath` reserves the ports.

use std::ops::RangeInclusive;

use crate::ThreadId;

/// The source port pool, divided into equal shares for the packet threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePorts {
    first: u16,
    /// The number of ports per thread, which is at least 1.
    share: u16,
    threads: u16,
}

impl SourcePorts {
    /// Divides `ports` among `threads` threads. Leftover ports are not used. Returns `None` if
    /// there are fewer ports than threads.
    #[must_use]
    pub fn new(ports: &RangeInclusive<u16>, threads: u16) -> Option<Self> {
        let threads = threads.max(1);
        let share = u16::try_from(ports.len() / usize::from(threads)).ok()?;
        (share > 0).then_some(Self { first: *ports.start(), share, threads })
    }

    /// Returns the ports that belong to a thread.
    #[must_use]
    pub fn of(&self, thread: ThreadId) -> RangeInclusive<u16> {
        let first = self.first + thread.0.min(self.threads - 1) * self.share;
        first..=first + (self.share - 1)
    }

    /// Returns the thread that a port belongs to, or `None` if no thread uses the port.
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
            let own = SourcePorts::new(&ports, threads).unwrap();
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
        assert_eq!(SourcePorts::new(&(61_000..=61_003), 5), None);
    }
}
