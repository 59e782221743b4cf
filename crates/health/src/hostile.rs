//! Test servers, most of which misbehave. Each server has its own port of 127.0.0.1.

use std::future::{Future, pending};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::{Dialer, Failure, Interim, attempt};
use config::CheckKind;

pub(super) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Serves every connection with `handler`. Returns the port.
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

/// Starts a server that reads the request, sends `answer` and closes the connection gracefully.
pub(super) async fn say(answer: impl Into<Vec<u8>>) -> u16 {
    let answer = answer.into();
    serve(move |stream| say_over(stream, answer.clone())).await
}

pub(super) async fn say_over<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    answer: Vec<u8>,
) -> io::Result<()> {
    let mut asked = [0; 4096];
    // Reading the first bytes of the request is enough.
    let _ = stream.read(&mut asked).await?;
    stream.write_all(&answer).await?;
    stream.shutdown().await?;
    while stream.read(&mut asked).await? > 0 {}
    Ok(())
}

/// Starts a server that accepts connections and sends no data.
pub(super) async fn silent() -> u16 {
    serve(|stream| async move {
        let _held = stream;
        pending().await
    })
    .await
}

/// Starts a server that responds to each received datagram with the datagrams that `answers`
/// returns.
pub(super) async fn datagrams(answers: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> u16 {
    let socket = UdpSocket::bind((HERE, 0)).await.unwrap();
    let port = socket.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut asked = vec![0; 65_535];
        while let Ok((length, from)) = socket.recv_from(&mut asked).await {
            for answer in answers(&asked[..length]) {
                let _ = socket.send_to(&answer, from).await;
            }
        }
    });
    port
}

/// Returns a port without a listener.
pub(super) async fn nobody() -> u16 {
    TcpListener::bind((HERE, 0)).await.unwrap().local_addr().unwrap().port()
}

/// Runs one attempt against 127.0.0.1. Panics if the attempt takes more than ten seconds.
pub(super) async fn ask(kind: &CheckKind) -> Result<(), Failure> {
    let interim = Interim::default();
    let attempt = attempt(kind, HERE, &Dialer::Direct, &interim);
    tokio::time::timeout(Duration::from_secs(10), attempt).await.expect("the attempt ends").map(drop)
}

/// Returns `true` if an attempt is still waiting after 200 ms.
pub(super) async fn waits(kind: &CheckKind) -> bool {
    let interim = Interim::default();
    let attempt = attempt(kind, HERE, &Dialer::Direct, &interim);
    tokio::time::timeout(Duration::from_millis(200), attempt).await.is_err()
}

/// Returns the failure that an attempt would have if its time limit ended. Waits until the attempt
/// has recorded the failure.
pub(super) async fn recorded(kind: &CheckKind) -> Failure {
    let interim = Interim::default();
    let recorded = async {
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            match interim.expired() {
                Err(Failure::NoAnswer) => {}
                recorded => return recorded.expect_err("a failure"),
            }
        }
    };
    tokio::select! {
        result = attempt(kind, HERE, &Dialer::Direct, &interim) => panic!("{result:?}"),
        failure = recorded => failure,
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("the attempt records no failure"),
    }
}

/// Returns the message of a failure.
pub(super) async fn words(kind: &CheckKind) -> String {
    ask(kind).await.expect_err("a failure").to_string()
}
