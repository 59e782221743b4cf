//! Stops single threads of a process with ptrace. To an observer, the process then has a hanging
//! thread. In contrast, SIGSTOP would stop the whole process.
//!
//! References: ptrace(2), `PTRACE_SEIZE` and `PTRACE_INTERRUPT`.

use std::fs;
use std::marker::PhantomData;

use anyhow::{Context, Result, ensure};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// Stopped threads, which continue when the handle is dropped. Only the tracing thread can let the
/// stopped threads continue, so the handle cannot be sent to a different thread.
#[derive(Debug)]
pub struct Stall {
    threads: Vec<Pid>,
    _here: PhantomData<*const ()>,
}

impl Stall {
    /// Stops the threads of these processes whose names begin with `prefix`, such as `packet-`.
    ///
    /// # Errors
    /// Returns an error if there is no such thread, or if ptrace is not permitted.
    pub fn begin(processes: &[u32], prefix: &str) -> Result<Self> {
        let mut stall = Self { threads: Vec::new(), _here: PhantomData };
        for process in processes {
            for task in fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
                // A thread may end before its name is read.
                if fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with(prefix)) {
                    let thread = task.file_name().to_string_lossy().parse()?;
                    let thread = Pid::from_raw(thread);
                    ptrace::seize(thread, ptrace::Options::empty()).context("cannot trace a thread")?;
                    stall.threads.push(thread);
                }
            }
        }
        ensure!(!stall.threads.is_empty(), "no thread name begins with {prefix}");
        stall.threads.iter().try_for_each(|&thread| ptrace::interrupt(thread))?;
        for &thread in &stall.threads {
            waitpid(thread, Some(WaitPidFlag::__WALL))?;
        }
        Ok(stall)
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        for &thread in &self.threads {
            // The call fails only if the thread has ended.
            _ = ptrace::detach(thread, None);
        }
    }
}
