//! Tests of how fast the router removes a failed balancer. The router's kernel routes have two next
//! hops, and after a balancer is killed or stopped only one.

use nix::sys::signal::Signal;
use testbed::{RouterKind as Kind, RouterSession as Session, eventually};

use crate::scene::{BOUND, Scene};

fn machines_that_die_or_hang_leave_the_router(kind: Kind) {
    let mut scene = Scene::new(kind, &Session::all());
    println!("{kind:?} has two next hops in both families after {:?}", scene.wait_for_next_hops(2));
    scene.wait_for_agreement();

    scene.machine(1).process.kill();
    println!("{kind:?} has one next hop {:?} after kill -9", scene.wait_for_next_hops(1));
    scene.start(1);
    scene.wait_for_next_hops(2);
    scene.wait_for_agreement();

    // BFD must be up. Otherwise the router would detect the failure only when the BGP hold time
    // expires. FRR keeps the BFD session of the killed process. When that session times out, FRR
    // also ends the new BGP session. The routes have one next hop until BGP is established again.
    let is_up = |scene: &Scene| {
        let up = |name: &str| scene.peer(1, name)["bfd"]["state"] == "Up";
        up("r4lb2") && up("r6lb2")
    };
    let steady = eventually(BOUND, || (is_up(&scene) && scene.has_next_hops(2)).then_some(()));
    assert!(steady.is_some(), "{}", scene.router.tail());
    scene.machine(1).process.pause().unwrap();
    println!("{kind:?} has one next hop {:?} after kill -STOP", scene.wait_for_next_hops(1));
    scene.machine(1).process.signal(Signal::SIGCONT).unwrap();
    println!("{kind:?} has two next hops {:?} after kill -CONT", scene.wait_for_next_hops(2));
}

#[test]
fn bird_removes_killed_or_stopped_machines() {
    machines_that_die_or_hang_leave_the_router(Kind::Bird);
}

#[test]
fn frr_removes_killed_or_stopped_machines() {
    machines_that_die_or_hang_leave_the_router(Kind::Frr);
}
