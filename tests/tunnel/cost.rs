//! Measures the CPU time of health checks through the encapsulation and of direct checks. CPU time
//! includes the time that the thread spends in the kernel.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::scene::{BOUND, Checks, Scene};

/// Returns the CPU time that the calling thread has used.
fn busy() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Returns the number of connections in TIME-WAIT. Each connection in this state occupies its port
/// for a minute.
fn in_time_wait() -> u32 {
    let text = fs::read_to_string("/proc/thread-self/net/sockstat").unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    words[words.iter().position(|word| *word == "tw").unwrap() + 1].parse().unwrap()
}

/// Connects and closes `count` times. Returns the CPU time and the elapsed time per connection.
async fn connects(count: u32, checks: Option<&Checks>, server: SocketAddr) -> (Duration, Duration) {
    let dialer = checks.map(|checks| checks.dialer("b1", server.ip()));
    let (since, before) = (Instant::now(), busy());
    for _ in 0..count {
        match &dialer {
            Some(dialer) => drop(dialer.tcp(server).await.unwrap()),
            None => {
                let stream = tokio::net::TcpStream::connect(server).await.unwrap();
                stream.set_zero_linger().unwrap();
            }
        }
    }
    ((busy() - before) / count, since.elapsed() / count)
}

#[test]
fn encapsulated_check_cost_is_bounded() {
    let scene = Scene::gre();
    let host = &scene.bed.balancers[0];
    let (file, name, device) = (scene.file.clone(), host.name.clone(), host.device);
    let (own, vip) = (SocketAddr::from((scene.bed.backends[0].v4, 80)), scene.bed.vip(true, 80));
    scene.ns().run(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let checks = Checks::open(&file, &name, device).await.unwrap();
            connects(100, Some(&checks), vip).await;
            for _ in 0..3 {
                let (direct, direct_wall) = connects(1000, None, own).await;
                let (through, wall) = connects(1000, Some(&checks), vip).await;
                println!("CPU time {direct:?} direct, {through:?} encapsulated, elapsed time {direct_wall:?} direct, {wall:?} encapsulated");
            }
            let (since, before) = (Instant::now(), busy());
            let dialer = checks.dialer("b1", vip.ip());
            let mut crowd = tokio::task::JoinSet::new();
            for _ in 0..50 {
                let dialer = dialer.clone();
                crowd.spawn(async move {
                    for _ in 0..100 {
                        drop(dialer.tcp(vip).await.unwrap());
                    }
                });
            }
            crowd.join_all().await;
            println!("50 parallel checks, CPU time {:?} per check, elapsed time {:?} for 5,000", (busy() - before) / 5000, since.elapsed());
            // The last RST segments may still be in flight.
            let expected = 3 * 8_100;
            let deadline = Instant::now() + BOUND;
            while checks.tunnel.counts().sent < expected && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let counts = checks.tunnel.counts();
            assert_eq!((counts.no_port, counts.errors), (0, 0), "{counts:?}");
            assert!(counts.sent >= expected, "too few segments were sent, {counts:?}");
            assert_eq!(in_time_wait(), 0, "checks leave connections in TIME-WAIT");
            checks.tunnel.close().await.unwrap();
        });
    });
}
