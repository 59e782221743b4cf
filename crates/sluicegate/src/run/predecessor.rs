//! The process that handed over to this one, until it is gone.
//!
//! In: its number. Out: whether it has ended, and the kernel has closed all that it had.
//! It answers the order before it ends, and until then has its share of ports and packet memory: the next hand-over waits for its end.
//! Source: pidfd_open(2): readable once every thread has ended, which is after their descriptors were closed.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

#[derive(Debug)]
pub(super) struct Predecessor(OwnedFd);

impl Predecessor {
    /// While it waits for this process, so that the number is its own still. `None`: it has gone, or the kernel does not say.
    pub(super) fn of(pid: i32) -> Option<Self> {
        pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok().map(Self)
    }

    /// Waits for its end; `false`: it is there still.
    pub(super) fn is_gone_within(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        loop {
            let left = PollTimeout::try_from(until.saturating_duration_since(Instant::now()));
            let mut ended = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ended, left.unwrap_or(PollTimeout::MAX)) {
                Err(Errno::EINTR) => {}
                found => return found.is_ok_and(|ready| ready > 0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn it_is_gone_when_it_has_ended_and_not_before() {
        let mut process = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let before = Predecessor::of(process.id().try_into().unwrap()).unwrap();
        assert!(!before.is_gone_within(Duration::from_millis(5)));
        drop(process.stdin.take());
        assert!(before.is_gone_within(Duration::from_secs(30)));
        assert!(before.is_gone_within(Duration::ZERO), "it stays so");
        process.wait().unwrap();
    }
}
