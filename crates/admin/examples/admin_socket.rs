//! Creates an admin socket that serves only `/v1/counters`.
//!
//! Run `cargo run --example admin_socket -- /tmp/api.sock`, and then `curl --unix-socket
//! /tmp/api.sock http://localhost/v1/counters`. The example exits when standard input ends.

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;

use admin::stats::Stats;
use admin::{Command, Limits, Rules, listen, router};
use axum::Router;
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).map(PathBuf::from).ok_or("usage: admin_socket SOCKET")?;
    let (commands, mut asked) = mpsc::channel(16);
    let (file, listener) = listen(&path, 0o600, None)?;
    let api = router(commands, Rules::default(), Router::new());
    let keep = tokio::spawn(file.keep(listener, api, Limits::default()));
    tokio::spawn(async move {
        let mut asked_for = 0;
        while let Some(command) = asked.recv().await {
            // All other commands are dropped without a reply, so the client receives status 503.
            if let Command::Stats(answer) = command {
                asked_for += 1;
                // The send fails if the client has disconnected.
                let _ = answer.send(Stats { generation: asked_for, ..Stats::default() });
            }
        }
    });
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    keep.abort();
    Ok(())
}
