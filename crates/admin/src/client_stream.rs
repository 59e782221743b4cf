//! A connection's stream: its client must go on reading, and [`Progress`] learns when all that was written is with the kernel.
//!
//! HTTP servers bound how long they wait for a request, and not how long for a reader: tokio-io-timeout does. It reports no
//! flush, and neither does hyper: that is what this wraps it for.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_io_timeout::TimeoutStream;

use super::connection_limiter::Progress;

/// See the file's header.
#[derive(Debug)]
pub(crate) struct ClientStream<S> {
    stream: Pin<Box<TimeoutStream<S>>>,
    progress: Progress,
}

impl<S: AsyncRead + AsyncWrite> ClientStream<S> {
    /// A write for which the client makes no space within `limit` is an error.
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
            // HTTP's machine flushes when it has handed over all that it holds.
            self.progress.flushed();
        }
        outcome
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}
