//! A network namespace without a name: it is a thread, and ends with it.
//!
//! In: closures. Out: their results; what they open, start or write under `/proc/sys/net` belongs to the namespace.
//! Invariant: the worker thread lives as long as the last [`Namespace`] handle, so children tied to it do too.
//! Not here: links and addresses (`link`, `bed`).
//! Source: network_namespaces(7); setns(2) on `/proc/PID/task/TID/ns/net`.

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

/// A handle to a namespace. Clones are cheap; the namespace goes when the last handle, socket and child are gone.
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
    /// Makes a namespace with its loopback up. `name` is for messages alone.
    ///
    /// # Errors
    /// Not root, or the kernel refuses.
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
                // A refused send means that `new` has gone, and then there is no job either.
                if report.send(made).is_err() || failed {
                    return;
                }
                while let Ok(job) = todo.recv() {
                    job();
                }
            })
            .context("no thread for a namespace")?;
        let (tid, file) = born
            .recv()
            .context("the namespace's thread died")?
            .with_context(|| format!("can't make network namespace {name} (root is needed)"))?;
        let ns =
            Self(Arc::new(Worker { name: name.into(), tid, file, jobs: Some(jobs), thread: Some(thread) }));
        ns.ip("link set lo up")?;
        Ok(ns)
    }

    /// The name given at construction.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The thread that holds the namespace: `ip … netns TID` and `nsenter` take it.
    #[must_use]
    pub fn tid(&self) -> Pid {
        self.0.tid
    }

    /// Inode of the namespace, as shown by `readlink /proc/PID/ns/net`.
    ///
    /// # Errors
    /// The kernel refuses `fstat`.
    pub fn inode(&self) -> Result<u64> {
        Ok(self.0.file.metadata()?.ino())
    }

    /// A path by which `nsenter --net=PATH` enters, while this process lives.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/task/{}/ns/net", std::process::id(), self.0.tid)
    }

    /// Runs `job` in the namespace, on a thread of its own, and waits for its result.
    ///
    /// # Panics
    /// As `job` does.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.spawn(job).join().unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Starts `job` in the namespace, on a thread of its own. Threads that it starts are in the namespace too.
    ///
    /// # Panics
    /// When the system has no thread left.
    pub fn spawn<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        self.on_worker(move || thread::spawn(job))
    }

    /// Starts a child on the namespace's own thread: what is tied to its parent thread ends with the namespace.
    ///
    /// # Errors
    /// The program can't be started.
    pub fn start(&self, mut command: Command) -> io::Result<Child> {
        self.on_worker(move || command.spawn())
    }

    /// Runs a program in the namespace to its end.
    ///
    /// # Errors
    /// It can't be started, or exits with a failure: its standard error is in the message.
    pub fn output(&self, mut command: Command) -> Result<Output> {
        let words = format!("{command:?}");
        let output = self.run(move || command.output()).with_context(|| format!("can't run {words}"))?;
        anyhow::ensure!(
            output.status.success(),
            "in namespace {}: {words}: {}: {}",
            self.name(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(output)
    }

    /// Runs a program in the namespace to its end, and returns its standard output.
    ///
    /// # Errors
    /// As [`Self::output`].
    pub fn text(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.args(args);
        Ok(String::from_utf8_lossy(&self.output(command)?.stdout).into_owned())
    }

    fn on_worker<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let jobs = self.0.jobs.as_ref().expect("there until drop");
        let job = Box::new(move || drop(done.send(job())));
        jobs.send(job).expect("the worker ends with the last handle");
        result.recv().expect("a job on the worker does not panic")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It only runs jobs, and none is left.
            drop(thread.join());
        }
    }
}
