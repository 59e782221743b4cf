//! Tests of busy polling with a driver that does not support it, such as veth since Linux 6.13. The
//! balancer must log once that busy polling is unavailable, and use interrupts instead. The
//! `zero-copy` test lane covers drivers with busy polling.

use testbed::LbConfig;

use crate::scene::Scene;

#[test]
fn busy_poll_works_without_driver_support() {
    for io in ["queues = 1\nbusy_poll = 16", "queues = 1\nbusy_poll = 16\nidle = { then = \"spin\" }"] {
        let scene = Scene::with(|bed| LbConfig { io: io.into(), ..LbConfig::new(bed) });
        for _ in 0..4 {
            scene.ask(true, 64);
            scene.ask(false, 64);
        }
        scene.settled();
        let device = scene.bed.balancers[0].device;
        let lines = scene.balancer.process.lines();
        let said: Vec<_> =
            lines.iter().filter(|line| line.text.contains("busy polling unavailable")).collect();
        let named = said.iter().all(|line| line.text.contains(device));
        assert!(said.len() <= 1 && named, "{}", scene.balancer.process.tail());
    }
}
