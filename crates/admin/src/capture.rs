//! The routes of `/v1/capture`: a stream of captured packets in pcapng format.
//!
//! A capture ends when a limit in the request is reached, when the client disconnects, or when
//! another client ends the capture. The run loop replies to [`Command::Capture`] with a channel of
//! pcapng blocks, and this module forwards the blocks as the response body. A client that stops
//! reading is disconnected (`client_stream`).

use std::convert::Infallible;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use counters::{DRIVER_DROPS, PIPELINE_DROPS};
use futures_util::stream::unfold;
use serde::Deserialize;

use super::app_state::AppState;
use super::command::{CaptureCommand, Command, SNAP_BYTES};
use super::guard::AuditRecord;
use super::handlers::{Done, ask, done, out_of_range, query};
use super::refuse::{bad_request, plural};
use super::server::Streaming;
use super::view::{CaptureEnd, Refusal};

/// The query parameters of a capture.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichPackets {
    vip: Option<String>,
    backend: Option<String>,
    /// Drop reasons, separated by commas.
    drop: Option<String>,
    #[serde(default)]
    new_flows: bool,
    sample: Option<NonZeroU32>,
    snaplen: Option<usize>,
    count: Option<NonZeroU64>,
    seconds: Option<u64>,
}

impl WhichPackets {
    fn command(self) -> Result<CaptureCommand, Refusal> {
        let snap = self.snaplen.unwrap_or(SNAP_USUALLY);
        if !SNAP_BYTES.contains(&snap) {
            let (least, most) = (SNAP_BYTES.start(), SNAP_BYTES.end());
            return Err(bad_request(format!("snaplen={snap} is out of range, use {least} to {most}")));
        }
        let seconds = self.seconds.unwrap_or(SECONDS_USUALLY);
        if !(1..=CAPTURE_SECONDS_AT_MOST).contains(&seconds) {
            return Err(out_of_range("seconds", seconds, CAPTURE_SECONDS_AT_MOST));
        }
        let names = self.drop.as_deref().map(|names| names.split(',').map(reason).collect());
        Ok(CaptureCommand {
            vip: self.vip,
            backend: self.backend,
            drops: names.transpose()?,
            new_flows: self.new_flows,
            sample: self.sample.unwrap_or(NonZeroU32::MIN),
            snap,
            count: self.count,
            within: Duration::from_secs(seconds),
        })
    }
}

/// Returns the drop reason with this name from the table of the crate `counters`.
fn reason(name: &str) -> Result<&'static str, Refusal> {
    let found = PIPELINE_DROPS.iter().copied().find(|reason| *reason == name);
    found.ok_or_else(|| {
        bad_request(if DRIVER_DROPS.contains(&name) {
            format!("drop reason {name} cannot be used as a filter, because the capture shows these packets as sent")
        } else {
            format!("unknown drop reason {name:?}, use one of {}", PIPELINE_DROPS.join(", "))
        })
    })
}

impl fmt::Display for CaptureCommand {
    /// Formats the parameters of the capture as one line, for the log and for the warnings that
    /// `status` prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("capture")?;
        if let Some(vip) = &self.vip {
            write!(f, " VIP {vip}")?;
        }
        if let Some(backend) = &self.backend {
            write!(f, " backend {backend}")?;
        }
        if let Some(drops) = &self.drops {
            write!(f, " dropped as {}", drops.join(" or "))?;
        }
        if self.new_flows {
            f.write_str(" new flows")?;
        }
        write!(f, " 1 packet in {}, {} bytes each", self.sample, self.snap)?;
        if let Some(packets) = self.count {
            write!(f, ", up to {}", plural(packets.get(), "packet"))?;
        }
        write!(f, ", for up to {}", plural(self.within.as_secs(), "second"))
    }
}

pub(super) async fn capture(
    state: State<AppState>,
    streaming: Option<Extension<Streaming>>,
    which: Result<Query<WhichPackets>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Query(which) = query(which)?;
    let command = which.command()?;
    let words = command.to_string();
    let stream = ask(&state, |answer| Command::Capture { command, answer }).await??;
    let streaming = streaming.map(|Extension(streaming)| streaming.begin());
    let body = unfold((stream.0, streaming), async |(mut chunks, streaming)| {
        let chunk = chunks.recv().await?;
        Some((Ok::<_, Infallible>(chunk), (chunks, streaming)))
    });
    let headers = [(header::CONTENT_TYPE, PCAPNG), (header::CACHE_CONTROL, "no-store")];
    Ok((Extension(AuditRecord::said(words)), headers, Body::from_stream(Box::pin(body))).into_response())
}

pub(super) async fn end(state: State<AppState>) -> Result<Done<CaptureEnd>, Refusal> {
    let ended = ask(&state, Command::EndCapture).await??;
    let words = format!("end the capture: {}", plural(ended.captured, "packet"));
    Ok(done(AuditRecord::said(words), ended))
}

const PCAPNG: &str = "application/x-pcapng";
/// The default number of captured bytes per packet, which is enough for all headers and the start
/// of the payload.
const SNAP_USUALLY: usize = 256;
const SECONDS_USUALLY: u64 = 3_600;
/// The maximum duration of a capture: 24 hours.
pub(super) const CAPTURE_SECONDS_AT_MOST: u64 = 86_400;
