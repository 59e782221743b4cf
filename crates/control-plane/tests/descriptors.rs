//! Tests that health check attempts which are aborted or never end do not leak file descriptors or
//! tasks. The test is in its own process, because it counts the descriptors and tasks of the whole
//! process.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use config::{
    AgentCheck, CheckKind, DnsCheck, DnsRecord, Expect, ExpectForm, GrpcCheck, HttpCheck, MemcachedCheck,
    NtpCheck, Payload, TcpCheck, Tls, Transport, UdpCheck,
};
use health::{Dialer, Interim, attempt};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::{Builder, Handle};
use tokio::time::timeout;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ATTEMPTS: usize = 1_000;

#[test]
fn aborted_attempts_leak_no_descriptors_and_tasks() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind((HERE, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let _deaf = UdpSocket::bind((HERE, port)).await.unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    while stream.read(&mut [0; 512]).await.is_ok_and(|length| length > 0) {}
                });
            }
        });
        // Some resources are opened once per process, such as a source of random numbers. These
        // resources must be open before descriptors are counted.
        for kind in kinds(port) {
            let first =
                timeout(Duration::from_millis(2), attempt(&kind, HERE, &Dialer::Direct, &Interim::default()))
                    .await;
            drop(first);
        }
        let (descriptors, tasks) = (descriptors(), tasks());
        for kind in kinds(port) {
            for _ in 0..ATTEMPTS / 10 {
                let ten = (0..10).map(|_| {
                    let kind = kind.clone();
                    async move {
                        timeout(
                            Duration::from_millis(2),
                            attempt(&kind, HERE, &Dialer::Direct, &Interim::default()),
                        )
                        .await
                        .is_ok_and(|done| done.is_ok())
                    }
                });
                let passed =
                    futures_util::future::join_all(ten).await.into_iter().filter(|passed| *passed).count();
                assert!(
                    passed == 0 || matches!(&kind, CheckKind::Tcp(tcp) if tcp.expect.is_none()),
                    "{kind:?}"
                );
            }
        }
        // The server handles connection resets asynchronously, so the test waits until the counts
        // have decreased.
        for _ in 0..1_000 {
            if self::descriptors() <= descriptors && self::tasks() <= tasks {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "leaked resources: {descriptors} descriptors and {tasks} tasks became {} and {}",
            self::descriptors(),
            self::tasks()
        );
    });
}

fn kinds(port: u16) -> [CheckKind; 13] {
    let lax = Tls { server_name: None, ca: None, verify: false, client: None };
    let http = |tls| {
        CheckKind::Http(HttpCheck {
            port,
            tls,
            method: "GET".into(),
            path: "/".into(),
            host: None,
            headers: Vec::new(),
            status: vec![200..=299],
            body_contains: None,
            probe_mtu: false,
        })
    };
    let payload = || Payload::Text("PING".into());
    let expect = Expect::new(ExpectForm::Text("PONG".into())).ok();
    let grpc = |tls| CheckKind::Grpc(GrpcCheck { port, service: "".into(), tls, probe_mtu: false });
    [
        CheckKind::Tcp(TcpCheck { port, send: None, expect: None }),
        CheckKind::Tcp(TcpCheck { port, send: Some(payload()), expect: expect.clone() }),
        CheckKind::Udp(UdpCheck { port, send: payload(), expect }),
        CheckKind::Udp(UdpCheck { port, send: payload(), expect: None }),
        http(None),
        http(Some(lax.clone())),
        grpc(None),
        grpc(Some(lax)),
        CheckKind::Dns(DnsCheck {
            port,
            name: "www.example.org".into(),
            record: DnsRecord::A,
            probe_mtu: true,
        }),
        CheckKind::Memcached(MemcachedCheck { port, transport: Transport::Tcp, probe_mtu: false }),
        CheckKind::Memcached(MemcachedCheck { port, transport: Transport::Udp, probe_mtu: true }),
        CheckKind::Agent(AgentCheck { port, send: None, min_weight: 10, max_weight: 100 }),
        CheckKind::Ntp(NtpCheck { port, max_stratum: 15 }),
    ]
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}
