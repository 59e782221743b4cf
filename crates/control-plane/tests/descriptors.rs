//! Attempts that are given up, or answered without end, leave nothing behind. One test, in a process of its own: it counts
//! the process's descriptors and tasks.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use config::{
    CheckKind, DnsCheck, DnsRecord, GrpcCheck, HttpCheck, MemcachedCheck, NtpCheck, TcpCheck, Tls, Transport,
};
use health::{Dialer, attempt};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::{Builder, Handle};
use tokio::time::timeout;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ATTEMPTS: usize = 1_000;

#[test]
fn a_thousand_attempts_that_are_given_up_leave_no_descriptor_and_no_task() {
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
        // What a program opens once, such as its source of random numbers, is open before the count.
        for kind in kinds(port) {
            let first = timeout(Duration::from_millis(2), attempt(&kind, HERE, &Dialer::Direct)).await;
            drop(first);
        }
        let (descriptors, tasks) = (descriptors(), tasks());
        for kind in kinds(port) {
            for _ in 0..ATTEMPTS / 10 {
                let ten = (0..10).map(|_| {
                    let kind = kind.clone();
                    async move {
                        timeout(Duration::from_millis(2), attempt(&kind, HERE, &Dialer::Direct))
                            .await
                            .is_ok_and(|done| done.is_ok())
                    }
                });
                let passed =
                    futures_util::future::join_all(ten).await.into_iter().filter(|passed| *passed).count();
                assert!(passed == 0 || matches!(kind, CheckKind::Tcp(_)), "{kind:?}");
            }
        }
        // The server sees each reset in its own time.
        for _ in 0..1_000 {
            if self::descriptors() <= descriptors && self::tasks() <= tasks {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "{descriptors} descriptors and {tasks} tasks became {} and {}",
            self::descriptors(),
            self::tasks()
        );
    });
}

fn kinds(port: u16) -> [CheckKind; 9] {
    let lax = Tls { server_name: None, ca: None, verify: false };
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
        })
    };
    let grpc = |tls| CheckKind::Grpc(GrpcCheck { port, service: "".into(), tls });
    [
        CheckKind::Tcp(TcpCheck { port }),
        http(None),
        http(Some(lax.clone())),
        grpc(None),
        grpc(Some(lax)),
        CheckKind::Dns(DnsCheck { port, name: "www.example.org".into(), record: DnsRecord::A }),
        CheckKind::Memcached(MemcachedCheck { port, transport: Transport::Tcp }),
        CheckKind::Memcached(MemcachedCheck { port, transport: Transport::Udp }),
        CheckKind::Ntp(NtpCheck { port, max_stratum: 15 }),
    ]
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}
