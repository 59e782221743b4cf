//! Why a data plane does not start.

/// Said in words, with the command that mends it where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The packet memory could not be made.
    #[error("packet memory: {0}")]
    Umem(String),
    /// A socket could not be bound.
    #[error("{interface} queue {queue}: cannot bind an AF_XDP socket: {why}")]
    Bind {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// What the kernel said.
        why: String,
    },
    /// Another socket has the queue.
    #[error("{interface} queue {queue}: another AF_XDP socket has it")]
    Busy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// The queue refused zero-copy.
    #[error("{interface} queue {queue}: no zero-copy")]
    NoZeroCopy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// A packet socket could not be opened.
    #[error("{interface}: cannot open a packet socket for packet thread {thread}: {why}")]
    Packet {
        /// The interface.
        interface: String,
        /// The packet thread.
        thread: u16,
        /// What the kernel said.
        why: String,
    },
    /// Something is wrong with the interface.
    #[error("{0}")]
    Interface(String),
    /// The XDP program.
    #[error("XDP program: {0}")]
    Steer(String),
    /// The connection and fragment tables.
    #[error("{0}")]
    Tables(String),
    /// Other threads than those of the process before, while tables of earlier ones are asked still.
    #[error(
        "with other threads {tables} connection tables of earlier processes would be asked for each flow that is not known, {most} at \
         most: leave io.queues, io.steering, io.threads and io.flows_per_thread as they are until the longest idle timeout has passed"
    )]
    Former {
        /// How many they would be.
        tables: usize,
        /// How many they may be.
        most: usize,
    },
    /// What only a restart brings stands between this data plane and the one in whose place it is to come.
    #[error("only a restart brings: {0}")]
    Handover(String),
    /// A packet thread.
    #[error("packet thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// An error with its causes, on one line.
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
