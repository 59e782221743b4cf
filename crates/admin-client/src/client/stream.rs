//! Reads a response body that continues until the daemon or the operator ends it.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::Context;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};

use super::server::Server;
use super::{exchange, no_daemon, refused, send};
use crate::signals::EndSignals;

/// The parameters of a streaming request; see [`super::Client::follow`].
pub(super) struct Stream<'a> {
    pub(super) server: &'a Server,
    pub(super) post: Request<Full<Bytes>>,
    /// The request that ends the stream.
    pub(super) delete: Request<Full<Bytes>>,
    pub(super) wait: Duration,
}

impl Stream<'_> {
    pub(super) async fn follow<T>(
        self,
        began: impl FnOnce() -> anyhow::Result<T>,
        mut take: impl FnMut(&mut T, &Bytes) -> anyhow::Result<ControlFlow<()>>,
    ) -> anyhow::Result<()> {
        let Self { server, post, delete, wait } = self;
        let mut end = EndSignals::catch()?;
        let Ok(begun) = tokio::time::timeout(wait, send(server, post)).await else {
            return Err(no_daemon(server, &"no response in time (--wait sets a longer timeout)"));
        };
        let mut body = accepted(begun.map_err(|error| no_daemon(server, &error))?).await?;
        let mut taker = began()?;
        let (mut delete, mut patience) = (Some(delete), Duration::MAX);
        loop {
            let frame = tokio::select! {
                frame = tokio::time::timeout(patience, body.frame()) => {
                    frame.context("the balancer did not end the capture in time")?
                }
                () = end.recv() => {
                    let Some(delete) = delete.take() else { return Ok(()) };
                    // Errors are ignored, because the response may have ended before the DELETE
                    // request arrived.
                    let _ = tokio::time::timeout(wait, exchange(server, delete)).await;
                    patience = wait;
                    continue;
                }
            };
            let Some(frame) = frame else { return Ok(()) };
            let frame = frame.map_err(|error| no_daemon(server, &format!("connection lost ({error})")))?;
            if let Some(bytes) = frame.data_ref()
                && take(&mut taker, bytes)?.is_break()
            {
                return Ok(());
            }
        }
    }
}

async fn accepted(response: Response<Incoming>) -> anyhow::Result<Incoming> {
    let status = response.status();
    if status.is_success() {
        return Ok(response.into_body());
    }
    Err(refused(status, &response.into_body().collect().await?.to_bytes()))
}
