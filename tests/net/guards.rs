//! Tests of source lists and of limits on new flows. Denied clients must be blocked, and other
//! clients must not be affected.

use std::fs;
use std::time::Instant;

use testbed::{Bed, LbConfig, eventually};

use crate::scene::{BOUND, SILENCE, Scene, verb};

const FLOWS: usize = 20;

#[test]
fn changed_deny_list_blocks_only_listed_clients() {
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
    // A change of the list file triggers a reload without a signal.
    fs::write(&list, format!("{} # the client\n", scene.bed.client.v6)).unwrap();
    let followed =
        eventually(BOUND, || (scene.balancer.counters().unwrap().at(&["generation"]) >= 2).then_some(()));
    assert!(followed.is_some(), "{}", scene.diagnosis());
    assert_eq!(v6.round_within(SILENCE).unwrap(), vec![None; FLOWS], "{}", scene.diagnosis());
    assert_eq!(scene.round(&mut v4), before[0], "an IPv4 flow moved");
    scene.drops_become("denied", FLOWS as u64);
    let (client, vip) = (scene.bed.client.v6, scene.bed.vip(false, Bed::ECHO_PORT));
    let file = scene.bed.dir().join(format!("{}.toml", scene.bed.balancers[0].name));
    let (source, vip, file) = (format!("[{client}]:7"), vip.to_string(), file.to_str().unwrap());
    let ended = verb(&scene.bed, &["where", &source, &vip, "udp", "--config", file]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.contains("denied: the source is on the VIP's deny list"), "{ended:?}");
    // If the list has an invalid line, the old list stays in effect. The log names the file and the
    // line.
    fs::write(&list, "everybody\n").unwrap();
    let config = config(&scene.bed);
    let line = scene.balancer.reload(&scene.bed, &config).unwrap();
    assert!(line.contains("deny.txt:1:1: 9 characters that are not an address or prefix"), "{line}");
    assert_eq!(v6.round_within(SILENCE).unwrap(), vec![None; FLOWS]);
    fs::write(&list, "").unwrap();
    let followed =
        eventually(BOUND, || (scene.balancer.counters().unwrap().at(&["generation"]) >= 3).then_some(()));
    assert!(followed.is_some(), "{}", scene.diagnosis());
    assert_eq!(scene.round(&mut v6), before[1], "a flow moved after its client was allowed again");
}

#[test]
fn new_flows_over_limit_are_dropped_by_reason() {
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
        // Each thread allows a burst, and then one new flow per second.
        let most = (2 + seconds) * threads;
        assert!(
            (1..=most).contains(&served),
            "{served} new flows were served on {threads} threads\n{}",
            scene.diagnosis()
        );
        let lost = answers.len() - served;
        scene.drops_become(reason, lost as u64);
    }
}
