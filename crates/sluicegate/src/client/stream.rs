//! An answer that goes on until somebody ends it.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{exchange, no_daemon, refused};

/// See [`super::Client::follow`].
pub(super) async fn follow(
    socket: &Path,
    (post, delete): (Request<Full<Bytes>>, Request<Full<Bytes>>),
    wait: Duration,
    began: impl FnOnce(),
    mut take: impl FnMut(&Bytes) -> anyhow::Result<ControlFlow<()>>,
) -> anyhow::Result<()> {
    let mut signals = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let begun = tokio::time::timeout(wait, begin(socket, post)).await;
    let Ok(begun) = begun else {
        return Err(no_daemon(socket, &"no answer in time; --wait gives it longer"));
    };
    let mut body = begun?;
    began();
    let (mut delete, mut patience) = (Some(delete), Duration::MAX);
    loop {
        let frame = tokio::select! {
            frame = tokio::time::timeout(patience, body.frame()) => frame.context("the balancer does not end the capture")?,
            () = asked_to_end(&mut signals) => match delete.take() {
                Some(delete) => {
                    // It may have come to its end by itself meanwhile.
                    let _ = tokio::time::timeout(wait, exchange(socket, delete)).await;
                    patience = wait;
                    continue;
                }
                None => return Ok(()),
            },
        };
        match frame {
            None => return Ok(()),
            Some(Err(error)) => return Err(no_daemon(socket, &format!("it broke off: {error}"))),
            Some(Ok(frame)) => {
                if let Some(bytes) = frame.data_ref()
                    && take(bytes)?.is_break()
                {
                    return Ok(());
                }
            }
        }
    }
}

async fn asked_to_end((interrupt, terminate): &mut (Signal, Signal)) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

async fn begin(socket: &Path, post: Request<Full<Bytes>>) -> anyhow::Result<Incoming> {
    let stream = UnixStream::connect(socket).await.map_err(|error| no_daemon(socket, &error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the body: its errors come back from there.
    tokio::spawn(connection);
    let response = sender.send_request(post).await.map_err(|error| no_daemon(socket, &error))?;
    let status = response.status();
    if status.is_success() {
        return Ok(response.into_body());
    }
    Err(refused(status, &response.into_body().collect().await?.to_bytes()))
}
