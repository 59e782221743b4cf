//! `/v1/capture`: packets as a stream of pcapng, until a bound is reached, the client goes or somebody ends it.
//!
//! In: which packets, and how many. Out: [`Command::Capture`], whose answer is the stream; its bytes, as they come.
//! Not here: what becomes of a packet, what the bytes say.
//! Invariant: a stream ends at its own bounds; a client that does not read is cut off (`client_stream`).

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
use super::command::{CaptureOrder, Command, SNAP_BYTES};
use super::guard::AuditRecord;
use super::handlers::{Done, ask, done, query};
use super::refuse::{bad_request, plural};
use super::server::Streaming;
use super::view::{CaptureEnd, Refusal};

/// Which packets, as it stands in the query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichPackets {
    vip: Option<String>,
    backend: Option<String>,
    /// Names with commas between them.
    drop: Option<String>,
    #[serde(default)]
    new_flows: bool,
    sample: Option<NonZeroU32>,
    snaplen: Option<usize>,
    count: Option<NonZeroU64>,
    seconds: Option<u64>,
}

impl WhichPackets {
    fn order(self) -> Result<CaptureOrder, Refusal> {
        let snap = self.snaplen.unwrap_or(SNAP_USUALLY);
        if !SNAP_BYTES.contains(&snap) {
            let (least, most) = (SNAP_BYTES.start(), SNAP_BYTES.end());
            return Err(bad_request(format!("snaplen={snap}, allowed {least} to {most}")));
        }
        let seconds = self.seconds.unwrap_or(SECONDS_USUALLY);
        if !(1..=CAPTURE_SECONDS_AT_MOST).contains(&seconds) {
            return Err(bad_request(format!("seconds={seconds}, allowed 1 to {CAPTURE_SECONDS_AT_MOST}")));
        }
        let names = self.drop.as_deref().map(|names| names.split(',').map(reason).collect());
        Ok(CaptureOrder {
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

/// The drop reason of this name, as the table has it.
fn reason(name: &str) -> Result<&'static str, Refusal> {
    let found = PIPELINE_DROPS.iter().copied().find(|reason| *reason == name);
    found.ok_or_else(|| {
        bad_request(if DRIVER_DROPS.contains(&name) {
            format!("drop={name}: this is found out behind the pipeline, when the packet has been captured as sent")
        } else {
            format!("drop={name}, allowed {}", PIPELINE_DROPS.join(", "))
        })
    })
}

impl fmt::Display for CaptureOrder {
    /// As the log and the status have it.
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
        write!(f, ", for {} at most", plural(self.within.as_secs(), "second"))
    }
}

pub(super) async fn capture(
    state: State<AppState>,
    streaming: Option<Extension<Streaming>>,
    which: Result<Query<WhichPackets>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Query(which) = query(which)?;
    let order = which.order()?;
    let words = order.to_string();
    let stream = ask(&state, |answer| Command::Capture { order, answer }).await??;
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
/// Headers, outer ones too, and the beginning of what they carry.
const SNAP_USUALLY: usize = 256;
const SECONDS_USUALLY: u64 = 3_600;
/// A day.
pub(super) const CAPTURE_SECONDS_AT_MOST: u64 = 86_400;
