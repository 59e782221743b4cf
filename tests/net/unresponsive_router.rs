//! A test with a router that keeps its BGP session but reads no data. The router's TCP window is
//! closed, so a withdrawal cannot leave the balancer's send queue.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use testbed::{BedSpec, LbConfig, Namespace, eventually};

use crate::scene::{BOUND, Scene};

/// Accepts a BGP session and reads only the messages that establish it.
fn listen(router: &Namespace) -> JoinHandle<TcpStream> {
    let listener = router.run(|| TcpListener::bind(SocketAddr::from(([192, 0, 2, 0], 179))).unwrap());
    // The listener's receive buffer has the minimum size, which accepted sockets inherit.
    setsockopt(&listener, sockopt::RcvBuf, &1).unwrap();
    router.spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let open = [
            &[0xff; 16][..],
            &[0, 53, 1, 4, 0xfd, 0xe8, 0, 0, 192, 0, 2, 0, 24, 2, 22], // AS 65000, no hold time
            &[1, 4, 0, 1, 0, 1, 1, 4, 0, 2, 0, 1, 2, 0, 65, 4, 0, 0, 0xfd, 0xe8, 70, 0],
            &[0xff; 16],
            &[0, 19, 4],
        ];
        stream.write_all(&open.concat()).unwrap();
        // Reads the balancer's OPEN and KEEPALIVE.
        for kind in [1, 4] {
            let mut head = [0; 19];
            stream.read_exact(&mut head).unwrap();
            assert_eq!(head[18], kind);
            let mut body = vec![0; usize::from(u16::from_be_bytes([head[16], head[17]])) - 19];
            stream.read_exact(&mut body).unwrap();
        }
        stream
    })
}

/// Sends route refresh requests until the balancer's updates have filled the receive buffer.
fn close_window(stream: &mut TcpStream) {
    let refresh = [&[0xff; 16][..], &[0, 23, 5, 0, 1, 0, 1]].concat();
    for _ in 0..200 {
        stream.write_all(&refresh).unwrap();
        sleep(Duration::from_millis(5));
    }
}

const ANNOUNCED: &str = "[bgp]\nasn = 65101\nhold_down = \"1s\"\n[[bgp.peers]]\nname = \"unresponsive\"\naddress = \"192.0.2.0\"\n\
    asn = 65000\nfamilies = [\"ipv4\"]\nhold_time = \"0s\"\n";

#[test]
fn unresponsive_router_session_is_closed() {
    let mut scene = Scene::new(&BedSpec::default(), |bed| LbConfig {
        vip_keys: "announce = {}".into(),
        more: ANNOUNCED.into(),
        ..LbConfig::new(bed)
    });
    let mut stream = listen(&scene.bed.router).join().unwrap();
    let row = |scene: &Scene| scene.balancer.ask("/v1/bgp").unwrap()["peers"][0].clone();
    let has_it = eventually(BOUND, || (row(&scene)["announced_v4"] == 1).then_some(()));
    assert!(has_it.is_some(), "{:#}", row(&scene));
    close_window(&mut stream);
    let taken = eventually(BOUND, || (row(&scene)["pending"] == 0).then_some(()));
    assert!(taken.is_some(), "the send queue still grows, {:#}", row(&scene));
    let link = crate::liveness::described(&scene, "link_id:", "link_id:");
    crate::liveness::bpftool(&format!("link detach id {link}"));
    scene.balancer.process.wait_for_line(BOUND, |line| line.contains("forwarder unhealthy")).unwrap();
    let start = Instant::now();
    let end = eventually(BOUND, || stream.take_error().unwrap());
    println!("session closed {:?} after the forwarder was unhealthy", start.elapsed());
    let end =
        end.unwrap_or_else(|| panic!("the session was not closed, {:#}\n{}", row(&scene), scene.diagnosis()));
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
    let says = |line: &str| {
        line.contains("BGP session closed by withdrawal timeout") && line.contains("unresponsive")
    };
    scene.balancer.process.wait_for_line(BOUND, says).unwrap();
    let row = row(&scene);
    assert_eq!(row["last_end"], "withdrawal not acknowledged in time", "{row:#}");
}
