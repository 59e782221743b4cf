//! Servers for tests, most of them ill-behaved, each on a port of its own at 127.0.0.1.

use std::future::{Future, pending};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::{Dialer, Failure, attempt};
use config::CheckKind;

pub(super) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Serves every connection with `handler`; returns the port.
pub(super) async fn serve<F, H>(handler: H) -> u16
where
    H: Fn(TcpStream) -> F + Send + 'static,
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(handler(stream));
        }
    });
    port
}

/// Reads what is asked, sends `answer` and closes in order.
pub(super) async fn say(answer: impl Into<Vec<u8>>) -> u16 {
    let answer = answer.into();
    serve(move |stream| say_over(stream, answer.clone())).await
}

pub(super) async fn say_over<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    answer: Vec<u8>,
) -> io::Result<()> {
    let mut asked = [0; 4096];
    // A part of the question is enough to know that there is one.
    let _ = stream.read(&mut asked).await?;
    stream.write_all(&answer).await?;
    stream.shutdown().await?;
    while stream.read(&mut asked).await? > 0 {}
    Ok(())
}

/// Accepts, and never says a word.
pub(super) async fn silent() -> u16 {
    serve(|stream| async move {
        let _held = stream;
        pending().await
    })
    .await
}

/// Answers each datagram with what `answers` makes of it, in that order.
pub(super) async fn datagrams(answers: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> u16 {
    let socket = UdpSocket::bind((HERE, 0)).await.unwrap();
    let port = socket.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut asked = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut asked).await {
            for answer in answers(&asked[..length]) {
                let _ = socket.send_to(&answer, from).await;
            }
        }
    });
    port
}

/// A port on which nobody listens.
pub(super) async fn nobody() -> u16 {
    TcpListener::bind((HERE, 0)).await.unwrap().local_addr().unwrap().port()
}

/// One attempt at 127.0.0.1; ten seconds stand for ever.
pub(super) async fn ask(kind: &CheckKind) -> Result<(), Failure> {
    let attempt = attempt(kind, HERE, &Dialer::Direct);
    tokio::time::timeout(Duration::from_secs(10), attempt).await.expect("an answer, good or bad")
}

/// Whether an attempt is still waiting after a while.
pub(super) async fn waits(kind: &CheckKind) -> bool {
    let attempt = attempt(kind, HERE, &Dialer::Direct);
    tokio::time::timeout(Duration::from_millis(200), attempt).await.is_err()
}

/// What an operator reads.
pub(super) async fn words(kind: &CheckKind) -> String {
    ask(kind).await.expect_err("a failure").to_string()
}
