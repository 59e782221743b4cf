//! Wraps the stream of a client connection to add a write timeout and to report flushes to
//! [`Progress`].
//!
//! HTTP servers limit how long a client may take to send a request, but not how long it may take to
//! read the response. The crate tokio-io-timeout provides the write timeout. This wrapper is
//! necessary because neither tokio-io-timeout nor hyper reports when all written bytes have reached
//! the kernel.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_io_timeout::TimeoutStream;

use super::connection_limiter::Progress;

/// A stream with a write timeout that reports flushes.
#[derive(Debug)]
pub(crate) struct ClientStream<S> {
    stream: Pin<Box<TimeoutStream<S>>>,
    progress: Progress,
}

impl<S: AsyncRead + AsyncWrite> ClientStream<S> {
    /// Wraps the stream. A write fails if the client reads nothing for the time `limit`.
    pub(crate) fn new(stream: S, limit: Duration, progress: Progress) -> Self {
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(limit));
        Self { stream: Box::pin(stream), progress }
    }
}

impl<S: AsyncRead + AsyncWrite> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite> AsyncWrite for ClientStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = self.stream.as_mut().poll_flush(context);
        if outcome.is_ready() {
            // The library hyper flushes the stream after it has written all pending output.
            self.progress.flushed();
        }
        outcome
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}
