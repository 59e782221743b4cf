//! Tests `status` with a large number of backends that are down. The output of the command must
//! stay short.

use std::fmt::Write as _;
use std::time::Instant;

use testbed::{LbConfig, Process, eventually};

use crate::scene::{BOUND, Scene, count};
use crate::soak::footprint;

/// Returns pools with 1,024 unavailable backends each, and VIPs for each pool. The backends of the
/// testbed are up, so that the balancer does not suspect its own network.
fn with_dead(pools: usize) -> String {
    let mut text = String::from(
        "[check.web]\ntcp = { port = 80 }\n[check.dead]\ntcp = { port = 9 }\ninterval = \"60s\"\nfast_interval = \"60s\"\n\
         timeout = \"1s\"\nfall = 1\n",
    );
    for pool in 0..pools {
        let members = (0..1_024).fold(String::new(), |mut members, n| {
            let (high, low) = (4 * pool + n / 256, n % 256);
            let _ =
                write!(members, "{{ name = \"dead-{high}-{low}\", address = \"198.19.{high}.{low}\" }}, ");
            members
        });
        let _ = writeln!(text, "[pool.dead-{pool}]\nchecks = [\"dead\"]\nbackends = [{members}]");
        for vip in 0..16 {
            let service = format!("{{ ports = [80], protocol = \"tcp\", pool = \"dead-{pool}\" }}");
            let address = format!("2001:db8:f:{pool:x}::{vip:x}");
            let _ = writeln!(
                text,
                "[vip.dead-{pool}-{vip}]\naddresses = [\"{address}\"]\nservices = [{service}]"
            );
        }
    }
    text
}

/// The limit on the command's memory and on the growth of the balancer's memory, in bytes.
const MOST_MEMORY: u64 = 100 << 20;

/// The output must not contain one line for each VIP without a backend, or one line for each
/// configuration warning.
// Promise: status-size
#[test]
fn status_of_many_down_backends_is_short() {
    let pools = count(4, 64);
    let scene = Scene::with(|bed| {
        let mut config = LbConfig::new(bed);
        config.pool_keys = "checks = [\"web\"]".into();
        config.more = with_dead(pools);
        config
    });
    let all = pools * 1_024;
    let down = eventually(10 * BOUND, || {
        let answer = scene.balancer.ask("/v1/status").unwrap();
        (answer["backends"]["down"] == all).then_some(answer)
    });
    let answer = down.unwrap();
    let named = answer["down"]["backends"].as_array().unwrap().len();
    assert_eq!((named, &answer["backends"]["serving"]), (10, &3.into()));
    let bytes = answer.to_string().len();
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let program = scene.bed.program().unwrap();
    let bounded = format!("--data={MOST_MEMORY}");
    let args = [&bounded, program.to_str().unwrap(), "status", "--socket", socket.to_str().unwrap()];
    // The balancer may still be building tables for the latest health states.
    let cheap = eventually(10 * BOUND, || {
        let (resident, start) = (footprint(&scene).1, Instant::now());
        let ended = Process::to_end(&scene.bed.balancers[0].ns, "prlimit", &args, 10 * BOUND).unwrap();
        let (took, more) = (start.elapsed(), footprint(&scene).1.saturating_sub(resident));
        println!(
            "{all} backends down, {bytes} bytes in {took:.0?}, resident memory {resident} KiB, growth {more} KiB"
        );
        (more < MOST_MEMORY / 1024).then_some(ended)
    });
    let ended = cheap.unwrap_or_else(|| panic!("the command uses too much memory\n{}", scene.diagnosis()));
    assert!(bytes < 16 << 10, "{bytes} bytes");
    let more = format!(
        "dead-0-103 in dead-0, dead-0-104 in dead-0, dead-0-105 in dead-0, dead-0-106 in dead-0 and {} more",
        all - 10
    );
    assert!(ended.out.contains(&more) && ended.out.lines().count() < 80, "{}", ended.out);
}
