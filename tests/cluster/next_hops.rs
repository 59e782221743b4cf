//! What the router's kernel has: two next hops, and one when a machine dies or hangs.

use nix::sys::signal::Signal;
use testbed::{RouterKind as Kind, RouterSession as Session, eventually};

use crate::scene::{BOUND, Scene};

fn machines_that_die_or_hang_leave_the_router(kind: Kind) {
    let mut scene = Scene::new(kind, &Session::all());
    println!("{kind:?}: two next hops over both families after {:?}", scene.wait_for_next_hops(2));
    scene.wait_for_agreement();

    scene.machine(1).process.kill();
    println!("{kind:?}: one after kill -9: {:?}", scene.wait_for_next_hops(1));
    scene.start(1);
    scene.wait_for_next_hops(2);
    scene.wait_for_agreement();

    // BFD has to be up, or only the hold time would tell. FRR holds on to the BFD session of the process that died, and ends the
    // new BGP session when that one times out: until it is back there is one next hop, whatever hangs.
    let is_up = |scene: &Scene| {
        let up = |name: &str| scene.peer(1, name)["bfd"]["state"] == "Up";
        up("r4lb2") && up("r6lb2")
    };
    let steady = eventually(BOUND, || (is_up(&scene) && scene.has_next_hops(2)).then_some(()));
    assert!(steady.is_some(), "{}", scene.router.tail());
    scene.machine(1).process.pause().unwrap();
    println!("{kind:?}: one after kill -STOP: {:?}", scene.wait_for_next_hops(1));
    scene.machine(1).process.signal(Signal::SIGCONT).unwrap();
    println!("{kind:?}: two after kill -CONT: {:?}", scene.wait_for_next_hops(2));
}

#[test]
fn behind_bird_a_machine_that_dies_or_hangs_leaves_the_routes() {
    machines_that_die_or_hang_leave_the_router(Kind::Bird);
}

#[test]
fn behind_frr_a_machine_that_dies_or_hangs_leaves_the_routes() {
    machines_that_die_or_hang_leave_the_router(Kind::Frr);
}
