//! A test router that sends and receives BGP messages without the codec of the crate.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bgp::{PeerConfig, PeerStatus, Speaker, SpeakerConfig, State};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

/// The timeout of every wait, which is much longer than any step takes.
pub(crate) const BOUND: Duration = Duration::from_secs(60);
pub(crate) const OUR_ASN: u32 = 65_101;
pub(crate) const ASN: u16 = 65_000;
pub(crate) const OUR_ID: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 100);

/// Starts a speaker on a free loopback port.
pub(crate) fn speaker(peers: Vec<PeerConfig>) -> Speaker {
    start(vec![SocketAddr::from(([127, 0, 0, 1], 0))], peers)
}

pub(crate) fn start(listen: Vec<SocketAddr>, peers: Vec<PeerConfig>) -> Speaker {
    let mut config = SpeakerConfig::new(OUR_ASN, OUR_ID);
    (config.listen, config.peers) = (listen, peers);
    Speaker::start(config).unwrap()
}

/// Returns a peer at a loopback address with short retry times.
pub(crate) fn peer(name: &str, at: SocketAddr) -> PeerConfig {
    let mut config = PeerConfig::new(name, at.ip(), ASN.into());
    config.port = at.port();
    config.times.first_retry = Duration::from_millis(50);
    config.times.max_retry = Duration::from_millis(200);
    config
}

/// Waits until the status of a peer satisfies a condition.
pub(crate) async fn until(speaker: &Speaker, name: &str, wanted: impl Fn(&PeerStatus) -> bool) -> PeerStatus {
    let mut watch = speaker.watch();
    let found = async {
        loop {
            if let Some(status) = watch.look().remove(name).filter(|status| wanted(status)) {
                return status;
            }
            // Some counters do not wake watchers, so the status is also polled.
            drop(timeout(Duration::from_millis(50), watch.changed()).await);
        }
    };
    let found = timeout(BOUND, found).await;
    found.unwrap_or_else(|_| panic!("{name} did not reach the state: {:#?}", speaker.status().get(name)))
}

pub(crate) async fn established(speaker: &Speaker, name: &str) -> PeerStatus {
    until(speaker, name, |status| status.state == State::Established).await
}

pub(crate) async fn listen(last: u8) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, last), 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// Listens with the smallest receive buffer that the kernel allows.
pub(crate) async fn listen_tight(last: u8) -> (TcpListener, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(1).unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
    let listener = socket.listen(8).unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

pub(crate) struct Router(pub(crate) TcpStream);

impl Router {
    pub(crate) async fn accept(listener: &TcpListener) -> Self {
        Self(timeout(BOUND, listener.accept()).await.expect("the speaker dials").unwrap().0)
    }

    pub(crate) async fn dial(from: u8, to: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, from], 0))).unwrap();
        Self(socket.connect(to).await.unwrap())
    }

    pub(crate) async fn send(&mut self, frame: &[u8]) {
        self.0.write_all(frame).await.unwrap();
    }

    /// Reads the next message. Returns the type and the body of the message, or `None` if the
    /// connection is closed.
    pub(crate) async fn read(&mut self) -> Option<(u8, Vec<u8>)> {
        let read = async {
            let mut head = [0; 19];
            self.0.read_exact(&mut head).await.ok()?;
            assert_eq!(head[..16], [0xff; 16]);
            let mut body = vec![0; usize::from(u16::from_be_bytes([head[16], head[17]])) - 19];
            self.0.read_exact(&mut body).await.ok()?;
            Some((head[18], body))
        };
        timeout(BOUND, read).await.expect("a message arrives")
    }

    /// Reads messages until one has this type, and returns its body.
    pub(crate) async fn wait_for(&mut self, kind: u8) -> Option<Vec<u8>> {
        loop {
            match self.read().await? {
                (found, body) if found == kind => return Some(body),
                _ => {}
            }
        }
    }

    /// Returns the code and subcode of the NOTIFICATION that ends the session, or `None` if there
    /// is no NOTIFICATION.
    pub(crate) async fn ended_with(&mut self) -> Option<(u8, u8)> {
        let body = self.wait_for(NOTIFICATION).await?;
        Some((body[0], body[1]))
    }

    /// Exchanges OPEN and KEEPALIVE messages, so that the session is established at the other side.
    pub(crate) async fn shake_hands(&mut self, id: Ipv4Addr, hold: u16) {
        self.send(&open(ASN, id, hold)).await;
        self.send(&frame(KEEPALIVE, &[])).await;
        self.wait_for(KEEPALIVE).await.expect("a KEEPALIVE arrives");
    }
}

pub(crate) const OPEN: u8 = 1;
pub(crate) const UPDATE: u8 = 2;
pub(crate) const NOTIFICATION: u8 = 3;
pub(crate) const KEEPALIVE: u8 = 4;

pub(crate) fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(19 + body.len()).unwrap().to_be_bytes();
    [&[0xff; 16][..], &len, &[kind], body].concat()
}

/// Encodes an OPEN with both address families and four-byte AS numbers.
pub(crate) fn open(asn: u16, id: Ipv4Addr, hold: u16) -> Vec<u8> {
    let capabilities = [
        &[1, 4, 0, 1, 0, 1][..],
        &[1, 4, 0, 2, 0, 1],
        &[65, 4, 0, 0, asn.to_be_bytes()[0], asn.to_be_bytes()[1]],
    ]
    .concat();
    let len = u8::try_from(capabilities.len()).unwrap();
    let mut body = vec![4];
    body.extend_from_slice(&asn.to_be_bytes());
    body.extend_from_slice(&hold.to_be_bytes());
    body.extend_from_slice(&id.octets());
    body.extend_from_slice(&[len + 2, 2, len]);
    body.extend_from_slice(&capabilities);
    frame(OPEN, &body)
}

/// Encodes UPDATEs that announce `count` different /32 prefixes.
pub(crate) fn flood(count: u32) -> Vec<u8> {
    let attributes: &[u8] = &[0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe8, 0x40, 3, 4, 127, 0, 0, 2];
    let all: Vec<u32> = (0..count).map(|n| 0xc612_0000 + n).collect();
    let update = |part: &[u32]| {
        let nlri: Vec<u8> = part.iter().flat_map(|n| [&[32], &n.to_be_bytes()[..]].concat()).collect();
        let len = u16::try_from(attributes.len()).unwrap().to_be_bytes();
        frame(UPDATE, &[&[0, 0], &len[..], attributes, &nlri].concat())
    };
    all.chunks(700).flat_map(update).collect()
}
