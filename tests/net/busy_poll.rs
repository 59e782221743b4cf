//! Busy polling where the driver cannot have it, as a veth's since Linux 6.13: it is said once, and packets come in interrupts. Where
//! one can, the lane `zero-copy` has it.

use testbed::LbConfig;

use crate::scene::Scene;

#[test]
fn with_busy_polling_asked_for_packets_come_whatever_the_driver_can_do() {
    for io in ["queues = 1\nbusy_poll = 16", "queues = 1\nbusy_poll = 16\nidle = { then = \"spin\" }"] {
        let scene = Scene::with(|bed| LbConfig { io: io.into(), ..LbConfig::new(bed) });
        for _ in 0..4 {
            scene.ask(true, 64);
            scene.ask(false, 64);
        }
        scene.settled();
        let device = scene.bed.balancers[0].device;
        let lines = scene.balancer.process.lines();
        let said: Vec<_> = lines.iter().filter(|line| line.text.contains("no busy polling")).collect();
        let named = said.iter().all(|line| line.text.contains(device));
        assert!(said.len() <= 1 && named, "{}", scene.balancer.process.tail());
    }
}
