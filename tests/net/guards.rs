//! Lists of sources and limits on new flows, over the real path: who is denied is cut, the others go on.

use std::fs;
use std::time::Instant;

use testbed::{Bed, LbConfig, eventually};

use crate::scene::{BOUND, SILENCE, Scene, verb};

const FLOWS: usize = 20;

#[test]
fn a_client_that_a_changed_list_denies_is_cut_at_once_and_the_others_go_on() {
    let config = |bed: &Bed| {
        let mut config = LbConfig::new(bed);
        config.vip_keys = "deny_files = [\"lists/deny.txt\"]".into();
        config.cluster += "\nwatch = true";
        config
    };
    let mut scene = Scene::with(|bed| {
        fs::create_dir(bed.dir().join("lists")).unwrap();
        fs::write(bed.dir().join("lists/deny.txt"), "# nobody yet\n").unwrap();
        config(bed)
    });
    let list = scene.bed.dir().join("lists/deny.txt");
    let (mut v4, mut v6) = (scene.flows(true, FLOWS), scene.flows(false, FLOWS));
    let before = [scene.round(&mut v4), scene.round(&mut v6)];
    // No signal: the change of the list alone is a reload.
    fs::write(&list, format!("{} # the client\n", scene.bed.client.v6)).unwrap();
    let followed =
        eventually(BOUND, || (scene.balancer.counters().unwrap().at(&["generation"]) >= 2).then_some(()));
    assert!(followed.is_some(), "{}", scene.diagnosis());
    assert_eq!(v6.round_within(SILENCE).unwrap(), vec![None; FLOWS], "{}", scene.diagnosis());
    assert_eq!(scene.round(&mut v4), before[0], "IPv4 flows stay where they are");
    scene.drops_become("denied", FLOWS as u64);
    let (client, vip) = (scene.bed.client.v6, scene.bed.vip(false, Bed::ECHO_PORT));
    let file = scene.bed.dir().join(format!("{}.toml", scene.bed.balancers[0].name));
    let (source, vip, file) = (format!("[{client}]:7"), vip.to_string(), file.to_str().unwrap());
    let ended = verb(&scene.bed, &["where", &source, &vip, "udp", "--config", file]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.contains("denied: the source is on the VIP's deny list"), "{ended:?}");
    // A list with a bad line changes nothing, and is named by file and line.
    fs::write(&list, "everybody\n").unwrap();
    let config = config(&scene.bed);
    let line = scene.balancer.reload(&scene.bed, &config).unwrap();
    assert!(line.contains("deny.txt:1:1: vip.www.deny_files[0]"), "{line}");
    assert_eq!(v6.round_within(SILENCE).unwrap(), vec![None; FLOWS]);
    fs::write(&list, "").unwrap();
    let followed =
        eventually(BOUND, || (scene.balancer.counters().unwrap().at(&["generation"]) >= 3).then_some(()));
    assert!(followed.is_some(), "{}", scene.diagnosis());
    assert_eq!(scene.round(&mut v6), before[1], "a client that is let in again keeps its backends");
}

#[test]
fn new_flows_over_a_limit_are_dropped_by_its_name() {
    for (reason, keys) in [
        ("flow_rate", "limits = { new_flows_per_second = 1 }"),
        ("source_flow_rate", "limits = { per_source = { new_flows_per_second = 1 } }"),
    ] {
        let scene = Scene::with(|bed| {
            let mut config = LbConfig::new(bed);
            config.vip_keys = keys.into();
            config
        });
        let threads = scene.balancer.counters().unwrap().threads();
        let mut flows = scene.flows(true, FLOWS + 2 * threads);
        let (start, patience) = (Instant::now(), BOUND / 10);
        let answers = flows.round_within(patience).unwrap();
        let seconds = usize::try_from((start.elapsed() - patience).as_secs()).unwrap();
        let served = answers.iter().flatten().count();
        // One of each thread's, and one more for each second that has begun meanwhile.
        let most = (2 + seconds) * threads;
        assert!((1..=most).contains(&served), "{served} on {threads} threads\n{}", scene.diagnosis());
        let lost = answers.len() - served;
        scene.drops_become(reason, lost as u64);
    }
}
