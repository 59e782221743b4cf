//! A generator of many small packets.
//!
//! In: ready frames. Out: how many of them the device took, and the time. One thread, 64 frames a system call.
//! Source: sendmmsg(2), packet(7).

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

/// Sends `frames` over and over out of `device` for `time`. The thread's result is the number of packets sent, and the time
/// that it took.
///
/// # Errors
/// There are no frames or no such device.
pub fn blast(
    ns: &Namespace,
    device: &str,
    frames: Vec<Vec<u8>>,
    time: Duration,
) -> Result<JoinHandle<Result<(u64, Duration)>>> {
    ensure!(!frames.is_empty(), "no frames to send");
    let to = link_address(ns, device)?;
    Ok(ns.spawn(move || send_all(&frames, to, time)))
}

/// Sends each of `frames` once out of `device`, in order, `per_second` of them a second at most. The time that it took.
///
/// # Errors
/// There is no such device, or it refuses a frame.
pub fn send_at(ns: &Namespace, device: &str, frames: Vec<Vec<u8>>, per_second: f64) -> Result<Duration> {
    let to = link_address(ns, device)?;
    ns.run(move || {
        let fd = raw_socket(None)?;
        let mut headers = MultiHeaders::<LinkAddr>::preallocate(PACED, None);
        let slices: Vec<[IoSlice<'_>; 1]> = frames.iter().map(|frame| [IoSlice::new(frame)]).collect();
        let (to, start, mut sent) = ([Some(to); PACED], Instant::now(), 0);
        while sent < slices.len() {
            #[expect(clippy::cast_precision_loss, reason = "frames of one test")]
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

/// Packets that go on coming until it is dropped, made anew round by round.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<u64>>>,
}

impl Flood {
    /// Sends what `round` makes, and asks it again, at `per_second` packets a second at most. What the device does not take, as
    /// while its link is down, is lost.
    ///
    /// # Errors
    /// There is no such device.
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
                    #[expect(clippy::cast_precision_loss, reason = "frames of one test")]
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

    /// Ends it; the packets that the device took.
    ///
    /// # Errors
    /// There was no socket to send by.
    pub fn end(mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("ended before")?;
        thread.join().map_err(|_| anyhow!("panicked"))?
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
                // The device has no room just now; that is what a blast is for.
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
/// Fewer: what is sent on time is to come in small portions.
const PACED: usize = 32;
