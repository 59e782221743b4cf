//! Receives SIGINT and SIGTERM, which end a running subcommand.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A receiver of SIGINT and SIGTERM.
#[derive(Debug)]
pub struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// Installs handlers for both signals. After this call, the signals no longer end the process.
    pub fn catch() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next SIGINT or SIGTERM. This function is cancel safe: no signal is lost if the
    /// future is dropped.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
