//! SIGINT and SIGTERM, by which an operator or the service manager ends a verb.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both, caught.
#[derive(Debug)]
pub struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// From here on they end the process no more.
    pub fn catch() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// The next of either. Nothing is lost when it is dropped before.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
