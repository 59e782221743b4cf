//! Generates many small packets.
//!
//! Each generator has its own thread. [`flood`] sends 64 prepared frames per system call and counts
//! the frames that the device accepted.
//!
//! References: sendmmsg(2), packet(7).

use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::errno::Errno;
use nix::sys::socket::{LinkAddr, MsgFlags, MultiHeaders, sendmmsg, sendto};

use crate::Namespace;
use crate::capture::{link_address, raw_socket};

/// Starts a thread that sends `frames` repeatedly on `device` for `time`. The thread returns the
/// number of packets sent and the elapsed time.
///
/// # Errors
/// Returns an error if `frames` is empty or the device does not exist.
pub fn flood(
    ns: &Namespace,
    device: &str,
    frames: Vec<Vec<u8>>,
    time: Duration,
) -> Result<JoinHandle<Result<(u64, Duration)>>> {
    ensure!(!frames.is_empty(), "no frames to send");
    let to = link_address(ns, device)?;
    Ok(ns.spawn(move || send_all(&frames, to, time)))
}

/// Sends each frame once on `device`, in order, with at most `per_second` frames per second.
/// Returns the elapsed time.
///
/// # Errors
/// Returns an error if the device does not exist or rejects a frame.
pub fn send_at(ns: &Namespace, device: &str, frames: Vec<Vec<u8>>, per_second: f64) -> Result<Duration> {
    let to = link_address(ns, device)?;
    ns.run(move || {
        let fd = raw_socket(None)?;
        let mut headers = MultiHeaders::<LinkAddr>::preallocate(PACED, None);
        let slices: Vec<[IoSlice<'_>; 1]> = frames.iter().map(|frame| [IoSlice::new(frame)]).collect();
        let (to, start, mut sent) = ([Some(to); PACED], Instant::now(), 0);
        while sent < slices.len() {
            #[expect(clippy::cast_precision_loss, reason = "the count is far below 2^52")]
            let due = start + Duration::from_secs_f64(sent as f64 / per_second);
            sleep(due.saturating_duration_since(Instant::now()));
            let batch = &slices[sent..slices.len().min(sent + PACED)];
            match sendmmsg(fd.as_raw_fd(), &mut headers, batch, &to[..batch.len()], [], MsgFlags::empty()) {
                Ok(results) => sent += results.count(),
                Err(Errno::ENOBUFS | Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(start.elapsed())
    })
}

/// A stream of packets that continues until the handle is dropped.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<u64>>>,
}

impl Flood {
    /// Starts a stream on `device`. The stream repeatedly calls `round` and sends the returned
    /// frames, at most `per_second` packets per second. Frames that the device rejects are lost,
    /// for example while its link is down.
    ///
    /// # Errors
    /// Returns an error if the device does not exist.
    pub fn start(
        ns: &Namespace,
        device: &str,
        per_second: f64,
        mut round: impl FnMut() -> Vec<Vec<u8>> + Send + 'static,
    ) -> Result<Self> {
        let (to, stop) = (link_address(ns, device)?, Arc::new(AtomicBool::new(false)));
        let until = Arc::clone(&stop);
        let thread = ns.spawn(move || {
            let (fd, mut sent) = (raw_socket(None)?, 0);
            while !until.load(Ordering::Relaxed) {
                let frames = round();
                for batch in frames.chunks(PACED) {
                    #[expect(clippy::cast_precision_loss, reason = "the count is far below 2^52")]
                    sleep(Duration::from_secs_f64(batch.len() as f64 / per_second));
                    for frame in batch {
                        sent += u64::from(sendto(fd.as_raw_fd(), frame, &to, MsgFlags::empty()).is_ok());
                    }
                }
            }
            Ok(sent)
        });
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends the stream and returns the number of packets that the device accepted.
    ///
    /// # Errors
    /// Returns an error if the packet socket could not be opened.
    pub fn end(mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("the stream has already ended")?;
        thread.join().map_err(|_| anyhow!("the sending thread panicked"))?
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn send_all(frames: &[Vec<u8>], to: LinkAddr, time: Duration) -> Result<(u64, Duration)> {
    let fd = raw_socket(None)?;
    let mut headers = MultiHeaders::<LinkAddr>::preallocate(BATCH, None);
    let slices: Vec<[IoSlice<'_>; 1]> = frames.iter().map(|frame| [IoSlice::new(frame)]).collect();
    let to = [Some(to); BATCH];
    let (start, mut sent) = (Instant::now(), 0);
    loop {
        for batch in slices.chunks(BATCH) {
            match sendmmsg(fd.as_raw_fd(), &mut headers, batch, &to[..batch.len()], [], MsgFlags::empty()) {
                Ok(results) => sent += results.count() as u64,
                // A full transmit queue is expected during a flood.
                Err(Errno::ENOBUFS | Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            if start.elapsed() >= time {
                return Ok((sent, start.elapsed()));
            }
        }
    }
}

const BATCH: usize = 64;
/// The batch size for sending at a fixed rate, which is small to avoid bursts.
const PACED: usize = 32;
