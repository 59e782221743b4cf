//! Errors that can occur when a data plane starts.

/// The reason why a data plane does not start. If a command can fix the problem, the message
/// contains the command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The packet memory could not be allocated.
    #[error("cannot allocate packet memory: {0}")]
    Umem(String),
    /// A socket could not be bound.
    #[error("cannot bind an AF_XDP socket to queue {queue} of {interface}: {why}")]
    Bind {
        /// The interface that has the queue.
        interface: String,
        /// The queue number.
        queue: u32,
        /// The error that the kernel returned.
        why: String,
    },
    /// Another socket uses the queue.
    #[error("another AF_XDP socket uses queue {queue} of {interface}")]
    Busy {
        /// The interface that has the queue.
        interface: String,
        /// The queue number.
        queue: u32,
    },
    /// The queue does not support zero-copy.
    #[error("queue {queue} of {interface} does not support zero-copy")]
    NoZeroCopy {
        /// The interface that has the queue.
        interface: String,
        /// The queue number.
        queue: u32,
    },
    /// A packet socket could not be opened.
    #[error("cannot open a packet socket on {interface} for packet thread {thread}: {why}")]
    Packet {
        /// The interface for which the socket is needed.
        interface: String,
        /// The index of the packet thread.
        thread: u16,
        /// The error that the kernel returned.
        why: String,
    },
    /// The data plane cannot use an interface. The message lists all problems.
    #[error("{0}")]
    Interface(String),
    /// The XDP program could not be loaded or attached.
    #[error("cannot use the XDP program: {0}")]
    Steer(String),
    /// The connection and fragment tables could not be created.
    #[error("{0}")]
    Tables(String),
    /// The number of threads changed while too many connection tables of earlier processes are
    /// still in use.
    #[error(
        "with a different number of threads, the lookup of an unknown flow would need {tables} connection tables of earlier processes, but at most {most} are \
         supported; keep io.queues, io.steering, io.threads and io.flows_per_thread until the longest idle timeout has passed"
    )]
    PreviousTables {
        /// The number of earlier tables that this process would have to keep.
        tables: usize,
        /// The maximum number of tables from earlier processes.
        most: usize,
    },
    /// A setting differs from the setting of the old process, and the difference requires a
    /// restart.
    #[error("a restart is needed to change {0}")]
    Handover(String),
    /// A packet thread could not be started.
    #[error("cannot start a packet thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Returns the text of an error and its causes on one line.
pub(crate) fn words(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        cause = error.source();
    }
    said
}
