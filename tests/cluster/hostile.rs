//! Tests of misconfigured BGP sessions. The log must name each problem, and other sessions must not
//! be affected.

use testbed::{RouterKind as Kind, RouterSession as Session, eventually};

use crate::scene::{BOUND, Scene};

#[test]
fn wrong_key_and_wrong_as_are_logged_per_session() {
    let mut sessions = Session::all();
    sessions[0].key = "guess"; // lb1, IPv4
    sessions[3].asn = 65_199; // lb2, IPv6
    let mut scene = Scene::new(Kind::Bird, &sessions);
    let established = |scene: &Scene, index, name: &str| scene.peer(index, name)["state"] == "Established";
    let well = eventually(BOUND, || {
        (established(&scene, 0, "r6lb1") && established(&scene, 1, "r4lb2")).then_some(())
    });
    assert!(well.is_some(), "{}", scene.router.tail());
    for (index, name, words) in [(0, "r4lb1", "MD5 key"), (1, "r6lb2", "AS")] {
        let why = eventually(BOUND, || {
            let error = scene.peer(index, name)["last_error"].as_str()?.to_owned();
            error.contains(words).then_some(error)
        });
        println!("{name}: {}", why.unwrap_or_else(|| panic!("{:?}", scene.peer(index, name))));
        let is_told = |line: &str| line.contains(name) && line.contains(words);
        scene.machine(index).process.wait_for_line(BOUND, is_told).unwrap();
        assert!(!established(&scene, index, name));
    }
    assert!(established(&scene, 0, "r6lb1") && established(&scene, 1, "r4lb2"));
}
