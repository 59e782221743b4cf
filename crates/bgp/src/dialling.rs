//! Handles the outgoing connection attempt to a peer, if one is in progress.

use std::future::{Future, pending};
use std::io;
use std::pin::Pin;

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::PeerConfig;
use crate::drops::Drops;
use crate::socket;
use crate::words;

type Attempt = Pin<Box<dyn Future<Output = Result<TcpStream, String>> + Send>>;

#[derive(Default)]
pub(crate) struct Dialling(Option<Attempt>);

impl Dialling {
    pub(crate) fn start(&mut self, config: &PeerConfig) {
        let config = config.clone();
        self.0 = Some(Box::pin(async move { dial(&config).await }));
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn give_up(&mut self) {
        self.0 = None;
    }

    /// Waits until the attempt ends, or forever if no attempt is in progress. This future is
    /// cancel-safe.
    pub(crate) async fn ended(&mut self) -> Result<TcpStream, String> {
        let Some(attempt) = &mut self.0 else { return pending().await };
        let ended = attempt.await;
        self.0 = None;
        ended
    }
}

async fn dial(config: &PeerConfig) -> Result<TcpStream, String> {
    let before = Drops::now();
    let attempt = timeout(config.times.dial, socket::dial(config)).await;
    attempt
        .map_err(|_| no_answer(config, before))
        .and_then(|done| done.map_err(|error| refused(config, &error, before)))
}

fn no_answer(config: &PeerConfig, before: Drops) -> String {
    let cause = if let Some(hint) = Drops::now().hint_since(before, config) {
        hint
    } else if config.md5.is_some() {
        "check that the router is up and has the same MD5 key (a kernel drops segments with a wrong key)"
    } else {
        "check that the router is up and does not require an MD5 key"
    };
    format!("no answer from {} within {}; {cause}", config.socket_address(), words::span(config.times.dial))
}

fn refused(config: &PeerConfig, error: &io::Error, before: Drops) -> String {
    let from = config.local_address.map(|local| format!(" from {local}")).unwrap_or_default();
    // The kernel's connection timeout can be shorter than the configured timeout.
    if error.kind() == io::ErrorKind::TimedOut {
        return no_answer(config, before);
    }
    format!("cannot connect to {}{from}: {error}", config.socket_address())
}
