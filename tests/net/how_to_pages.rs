//! Runs the commands of how-to and reference pages after the tutorial `real-machines.md`.
//!
//! The pages run one after the other, as an operator would read them: the configuration after one
//! page is the configuration before the next one. The commands of each page run unchanged in a
//! separate shell. The module `quick_start` describes the hosts.

use std::fs;

use testbed::{Section, sections};

use crate::quick_start::{
    BACKEND, BALANCER, INSTALL, REQUEST, on, real_machine, real_machines, run, web_server,
};

/// The pages whose commands all run on the load balancer, in this order.
const ON_THE_LOAD_BALANCER: [&str; 20] = [
    "how-to/drain-a-backend.md",
    "how-to/replace-a-backend.md",
    "how-to/change-the-log-level.md",
    "reference/log.md",
    "reference/events.md",
    "how-to/respond-to-alerts.md",
    "how-to/prepare-a-machine.md",
    "how-to/fix-partial-checksums.md",
    "how-to/configure-interfaces.md",
    "how-to/manage-the-configuration.md",
    "how-to/check-backends.md",
    "how-to/simulate-a-change.md",
    "how-to/capture-packets.md",
    "how-to/replay-a-capture.md",
    "how-to/size-a-machine.md",
    "how-to/monitor.md",
    "how-to/inspect-load-balancers.md",
    "reference/api.md",
    "how-to/upgrade.md",
    "how-to/restart-a-cluster.md",
];
const ADD_A_VIP: &str = "how-to/add-a-vip.md";
const PREPARE_BACKENDS: &str = "how-to/prepare-backends.md";
const ROUTE_BY_KEY: &str = "how-to/route-by-key.md";

fn read(page: &str) -> String {
    fs::read_to_string(format!("{}/../docs/{page}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Returns the first code block of this language in a page, as a command that appends it to the
/// configuration.
fn append_to_configuration(page: &str) -> String {
    let text = read(page);
    let (_, rest) = text.split_once("```toml\n").unwrap();
    let lines =
        rest.lines().take_while(|line| line.trim() != "```").map(|line| line.trim().to_owned() + "\n");
    format!("cat >> /etc/sluicegate/sluicegate.toml <<'TOML'\n{}TOML\n", lines.collect::<String>())
}

/// Returns the commands from those sections of a page for which `wanted` returns `true`.
fn commands(page: &str, wanted: impl Fn(&str) -> bool) -> String {
    let found: Vec<Section> = sections(&read(page));
    let found: Vec<_> = found.into_iter().filter(|section| wanted(&section.heading)).collect();
    assert!(!found.is_empty(), "{page} has no commands in these sections");
    found.into_iter().map(|section| section.commands).collect()
}

/// Returns the commands that set up the load balancer. The packet buffers of two processes must fit
/// below the limit of locked memory, because the test cannot raise the limit.
fn set_up() -> String {
    let small = "printf '\\n[io]\\nframes_per_queue = 1024\\n' >> /etc/sluicegate/sluicegate.toml";
    let start = "systemctl enable --now sluicegate\n";
    let setup = real_machine(&[INSTALL, BALANCER]).replace(start, &format!("{small}\n{start}"));
    assert!(setup.contains(small), "{setup}");
    setup
}

// Promise: documented-start
#[test]
fn how_to_pages_run_after_the_tutorial() {
    const ON_BACKENDS: &str = "Prepare each backend";
    const ON_CLIENT: &str = "Send a request";
    let is_tunnel = |heading: &str| ["GRE", "IPIP", "GUE"].contains(&heading);
    let mut script = real_machines(&["b3:192.0.2.13"]) + &web_server("b3");
    // The tunnel devices need kernel modules. `testbed::Tunnels` runs their commands in a VM.
    let prepare = format!(
        "ip route add default via 192.0.2.254\n{}",
        commands(PREPARE_BACKENDS, |heading| !is_tunnel(heading))
    );
    script += &on(PREPARE_BACKENDS, "b3", &prepare);
    script += &on("b3", "b3", &real_machine(&[BACKEND]));
    script += &on("lb1", "lb1", &set_up());
    script += &on("client", "client", &real_machine(&[REQUEST]));
    for backend in ["b1", "b2", "b3"] {
        script += &on(backend, backend, &commands(ADD_A_VIP, |heading| heading == ON_BACKENDS));
    }
    script +=
        &on(ADD_A_VIP, "lb1", &commands(ADD_A_VIP, |heading| ![ON_BACKENDS, ON_CLIENT].contains(&heading)));
    script += &on(ON_CLIENT, "client", &commands(ADD_A_VIP, |heading| heading == ON_CLIENT));
    for page in ON_THE_LOAD_BALANCER {
        let mut all = commands(page, |_| true);
        if page == "how-to/monitor.md" {
            all = append_to_configuration(page) + &all;
        }
        if page == "how-to/manage-the-configuration.md" {
            all += "sluicegate config reload\n"; // The page changes the file.
        }
        script += &on(page, "lb1", &all);
    }
    script += &on("end", "client", "curl --silent --show-error --max-time 10 http://203.0.113.10/\n");
    let output = run(&script);
    let shows = |page: &str, words: &str| assert!(output[page].contains(words), "{page}: {}", output[page]);
    shows(PREPARE_BACKENDS, "refused_source ");
    shows(ADD_A_VIP, "203.0.113.11");
    shows(ON_CLIENT, "this is b");
    shows("how-to/replace-a-backend.md", "in sync with the file");
    shows("how-to/prepare-a-machine.md", "errors: 0");
    shows("how-to/check-backends.md", "b1 ");
    shows("how-to/replay-a-capture.md", "received ");
    shows("how-to/size-a-machine.md", "VmRSS:");
    shows("how-to/monitor.md", "sluicegate_");
    shows("how-to/inspect-load-balancers.md", "\nalgorithm ");
    shows("reference/api.md", "\"forwarder\"");
    let upgrade = &output["how-to/upgrade.md"];
    for digest in ["algorithm ", "configuration "] {
        let lines: Vec<&str> = upgrade.lines().filter(|line| line.starts_with(digest)).collect();
        assert!(lines.len() == 2 && lines[0] == lines[1], "{lines:?}");
    }
    for page in ["how-to/upgrade.md", "how-to/restart-a-cluster.md"] {
        shows(page, "\nbackends     2 serving, 0 draining");
    }
    shows("end", "this is b");
    // The simulation gives the same result on every machine, so the page must show exactly this
    // output.
    let simulated = read("how-to/simulate-a-change.md");
    let (_, rest) = simulated.split_once("It prints:\n\n```text\n").unwrap();
    shows("how-to/simulate-a-change.md", rest.split("```").next().unwrap());
}

#[test]
fn route_by_key_page_serves_memcached_requests() {
    let servers = ["m1:192.0.2.21", "m2:192.0.2.22"];
    let mut script = real_machines(&servers);
    for server in servers {
        let (host, address) = server.split_once(':').unwrap();
        let backend = real_machine(&[BACKEND]).replace("203.0.113.10", "203.0.113.12");
        let memcached = commands(ROUTE_BY_KEY, |heading| heading.starts_with("1. "));
        script += &on(host, host, &(backend + &memcached.replace("192.0.2.21", address)));
    }
    script += &on("lb1", "lb1", &(set_up() + &append_to_configuration(ROUTE_BY_KEY)));
    let is_client = |heading: &str| heading.starts_with("5. ");
    let before = |heading: &str| {
        heading == "Before you begin" || ["3. ", "4. "].iter().any(|step| heading.starts_with(step))
    };
    let after = |heading: &str| !before(heading) && !is_client(heading) && !heading.starts_with("1. ");
    script += &on("before", "lb1", &commands(ROUTE_BY_KEY, before));
    let route = "ip route add 203.0.113.12/32 via 192.0.2.1\n".to_owned();
    script += &on("client", "client", &(route + &commands(ROUTE_BY_KEY, is_client)));
    script += &on("after", "lb1", &commands(ROUTE_BY_KEY, after));
    let output = run(&script);
    let shows = |part: &str, words: &str| assert!(output[part].contains(words), "{part}: {}", output[part]);
    shows("before", "m1 ");
    shows("client", "STORED");
    shows("client", "VALUE user:17 0 5\nhello\nEND");
    shows("after", "flushing");
}
