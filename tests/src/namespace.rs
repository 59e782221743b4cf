//! An unnamed network namespace, which is owned by a worker thread.
//!
//! The worker thread lives until the last [`Namespace`] handle is dropped. Closures run in the
//! namespace. Sockets and child processes that a closure creates belong to the namespace. The
//! closure's changes below `/proc/sys/net` affect only the namespace. Child processes with a
//! parent-death signal end with the worker thread. The modules `link` and `bed` configure devices
//! and addresses.
//!
//! References: network_namespaces(7); setns(2) on `/proc/PID/task/TID/ns/net`.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::panic::resume_unwind;
use std::process::{Child, Command, Output};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Pid, gettid};

type Job = Box<dyn FnOnce() + Send>;

/// A handle to a network namespace. Cloning it is cheap. The kernel removes the namespace when the
/// last handle, socket and child process are gone.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<Worker>);

#[derive(Debug)]
struct Worker {
    name: String,
    tid: Pid,
    file: File,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Namespace {
    /// Creates a namespace and enables its loopback device. `name` appears only in messages.
    ///
    /// # Errors
    /// Returns an error without root privileges, or if the kernel rejects the request.
    pub fn new(name: &str) -> Result<Self> {
        let (jobs, todo) = channel::<Job>();
        let (report, born) = channel();
        let thread = thread::Builder::new()
            .name(format!("ns-{name}"))
            .spawn(move || {
                let made = unshare(CloneFlags::CLONE_NEWNET)
                    .map_err(io::Error::from)
                    .and_then(|()| File::open("/proc/thread-self/ns/net"))
                    .map(|file| (gettid(), file));
                let failed = made.is_err();
                // `send` fails only if `new` has already returned an error. No jobs exist in this
                // case.
                if report.send(made).is_err() || failed {
                    return;
                }
                while let Ok(job) = todo.recv() {
                    job();
                }
            })
            .context("cannot start the thread of a namespace")?;
        let (tid, file) = born
            .recv()
            .context("the thread of the namespace died")?
            .with_context(|| format!("cannot create network namespace {name} (requires root)"))?;
        let ns =
            Self(Arc::new(Worker { name: name.into(), tid, file, jobs: Some(jobs), thread: Some(thread) }));
        ns.ip("link set lo up")?;
        Ok(ns)
    }

    /// Returns the name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the thread ID of the worker, for `ip link ... netns TID` and `nsenter`.
    #[must_use]
    pub fn tid(&self) -> Pid {
        self.0.tid
    }

    /// Returns the inode of the namespace, as shown by `readlink /proc/PID/ns/net`.
    ///
    /// # Errors
    /// Returns an error if `fstat` fails.
    pub fn inode(&self) -> Result<u64> {
        Ok(self.0.file.metadata()?.ino())
    }

    /// Returns a path for `nsenter --net=PATH`. The path is valid while this process runs.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/task/{}/ns/net", std::process::id(), self.0.tid)
    }

    /// Runs `job` in the namespace on a new thread, and waits for its result.
    ///
    /// # Panics
    /// Panics if `job` panics.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.spawn(job).join().unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Starts `job` in the namespace on a new thread. Threads that `job` starts also run in the
    /// namespace.
    ///
    /// # Panics
    /// Panics if the system cannot create a thread.
    pub fn spawn<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        self.on_worker(move || thread::spawn(job))
    }

    /// Starts a child process from the worker thread. If the child has a parent-death signal, it
    /// ends with the worker thread.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started.
    pub fn start(&self, mut command: Command) -> io::Result<Child> {
        self.on_worker(move || command.spawn())
    }

    /// Runs a program in the namespace and waits until it ends.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started or exits with a failure. The message
    /// contains its standard error.
    pub fn output(&self, mut command: Command) -> Result<Output> {
        let words = format!("{command:?}");
        let output = self.run(move || command.output()).with_context(|| format!("cannot run {words}"))?;
        anyhow::ensure!(
            output.status.success(),
            "in namespace {}: {words}: {}: {}",
            self.name(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(output)
    }

    /// Runs a program in the namespace and returns its standard output.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::output`].
    pub fn text(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.args(args);
        Ok(String::from_utf8_lossy(&self.output(command)?.stdout).into_owned())
    }

    fn on_worker<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let jobs = self.0.jobs.as_ref().expect("the job queue exists until drop");
        let job = Box::new(move || drop(done.send(job())));
        jobs.send(job).expect("the worker ends with the last handle");
        result.recv().expect("a job on the worker does not panic")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // All handles are gone, so the worker has no pending jobs.
            drop(thread.join());
        }
    }
}
