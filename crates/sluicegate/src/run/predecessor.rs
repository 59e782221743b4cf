//! Waits until the old process of an upgrade has exited. The old process keeps its ports and packet
//! memory until it exits, so the next upgrade must wait for its exit.
//!
//! References: pidfd_open(2). A pidfd becomes readable after all threads of the process have ended
//! and closed their descriptors.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

#[derive(Debug)]
pub(super) struct Predecessor(OwnedFd);

impl Predecessor {
    /// Opens a pidfd for the old process. Call this while the old process waits for this process,
    /// so that its process ID cannot have been reused. Returns `None` if the process has already
    /// exited or the kernel refuses the call.
    pub(super) fn of(pid: i32) -> Option<Self> {
        pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok().map(Self)
    }

    /// Waits until the old process has exited. Returns `false` if the process is still running
    /// after `within`.
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
        assert!(before.is_gone_within(Duration::ZERO), "the result stays the same");
        process.wait().unwrap();
    }
}
