//! Runs the commands of all tutorials.
//!
//! Each test has its own network, mount and process namespaces, which end with the test. For pages
//! with systemd units, each host is a network namespace with private `/etc` and `/run` folders, and
//! `systemctl.sh` replaces systemd. The module `how_to_pages` runs the commands of other pages
//! after the tutorials.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use testbed::{Namespace, Process, Section, TempDir, binary, sections};

const FIRST_TRAFFIC: &str = include_str!("../../docs/tutorial/first-traffic.md");
const SECOND_MACHINE: &str = include_str!("../../docs/tutorial/second-machine.md");
const REAL_MACHINES: &str = include_str!("../../docs/tutorial/real-machines.md");
/// The timeout of a test, which is many times longer than a tutorial takes.
const BOUND: Duration = Duration::from_secs(600);

/// Returns a script with an `echo` of the heading and the commands. `run` uses the `echo` lines to
/// split the output by heading.
fn script(section: &Section) -> String {
    format!("echo '=== {}'\n{}", section.heading, section.commands)
}

/// Returns the sections of a page that have commands. Panics if their headings are not exactly
/// `headings`.
fn sections_named(page: &'static str, headings: &[&str]) -> Vec<Section> {
    let found = sections(page);
    let have: Vec<&str> = found.iter().map(|section| &*section.heading).collect();
    assert_eq!(have, headings, "the test must run exactly these sections");
    found
}

/// Runs a script, and returns its output by heading.
pub(crate) fn run(script: &str) -> BTreeMap<String, String> {
    // Locked memory is counted per user, and all units of the balancer have the same user. If a
    // test cannot raise the limit of locked memory, only the packet memory of one process fits
    // below it.
    static UNITS: Mutex<()> = Mutex::new(());
    let is_unit = script.contains("systemctl");
    let _one_at_a_time = is_unit.then(|| UNITS.lock().unwrap_or_else(PoisonError::into_inner));
    let (ns, dir) = (Namespace::new("quick-start").unwrap(), TempDir::new().unwrap());
    let path = dir.path().to_str().unwrap();
    let (file, systemctl) = (dir.path().join("script"), dir.path().join("bin/systemctl"));
    fs::create_dir(dir.path().join("bin")).unwrap();
    fs::write(&systemctl, include_str!("systemctl.sh")).unwrap();
    fs::set_permissions(&systemctl, Permissions::from_mode(0o755)).unwrap();
    // On a busy test machine, commands need more time than the pages state.
    let script = script.replace("timeout 60 ", "timeout 200 ");
    fs::write(&file, format!("{}{script}", include_str!("quick_start.sh"))).unwrap();
    let (program, file) = (binary().unwrap(), file.to_str().unwrap());
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../config");
    #[rustfmt::skip]
    let args = [
        "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
        "sh", "-eux", file, path, program.to_str().unwrap(), config,
    ];
    let ended = Process::to_end(&ns, "unshare", &args, BOUND).unwrap();
    println!("{}{}", ended.err, ended.out);
    for file in fs::read_dir(dir.path().join("bin")).unwrap() {
        let file = file.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "log") {
            println!("{}:\n{}", file.display(), fs::read_to_string(&file).unwrap());
        }
    }
    assert_eq!(ended.code, Some(0));
    let parts = ended.out.split("=== ").skip(1).filter_map(|part| part.split_once('\n'));
    parts.map(|(heading, output)| (heading.to_owned(), output.to_owned())).collect()
}

/// Returns how many responses of this backend the output contains, as counted by `uniq -c`.
fn answers(output: &str, backend: &str) -> usize {
    let wanted = format!("this is {backend}");
    let counts = output.lines().filter_map(|line| line.trim().split_once(' '));
    counts.filter(|(_, who)| *who == wanted).map(|(count, _)| count.parse::<usize>().unwrap()).sum()
}

fn answers_of_both(output: &str) -> usize {
    answers(output, "b1") + answers(output, "b2")
}

const CLEAN_UP: &str = "Clean up";

fn first_traffic() -> Vec<Section> {
    sections_named(
        FIRST_TRAFFIC,
        &[
            "Install the program",
            "Create the network",
            "Set up the client",
            "Start the backends",
            "Start the load balancer",
            "Send requests",
            "Drain a backend",
            CLEAN_UP,
        ],
    )
}

// Promise: documented-start
#[test]
fn first_traffic_tutorial_serves_drains_and_cleans_up() {
    let output = run(&first_traffic().iter().map(script).collect::<String>());
    assert!(output["Install the program"].starts_with("sluicegate "), "{output:?}");
    let start = &output["Start the load balancer"];
    assert!(start.contains("no problem found\n"), "{start}");
    assert!(start.contains("\nbackends     2 serving, 0 draining"), "{start}");
    let traffic = &output["Send requests"];
    let shares = ["b1", "b2"].map(|backend| answers(traffic, backend));
    assert!(shares[0] > 0 && shares[1] > 0 && shares[0] + shares[1] == 30, "{traffic}");
    assert!(traffic.contains("\n  backend  b"), "{traffic}");
    let drain = &output["Drain a backend"];
    assert_eq!((answers(drain, "b1"), answers(drain, "b2")), (10, 0), "{drain}");
    assert!(drain.contains(": trying it\n"), "the events must contain the reason, {drain}");
}

// Promise: documented-start
#[test]
fn second_machine_tutorial_spreads_and_drains_without_errors() {
    let first = first_traffic().into_iter().filter(|section| section.heading != CLEAN_UP);
    let announce = "Announce the VIP from lb1";
    let (spread, drain, back) = ("Start lb2", "Drain lb1 while clients send requests", "Bring lb1 back");
    let second = sections_named(SECOND_MACHINE, &["Add the router", announce, spread, drain, back, CLEAN_UP]);
    let output = run(&first.chain(second).map(|section| script(&section)).collect::<String>());
    let announced = &output[announce];
    assert!(announced.contains("Established"), "{announced}");
    assert!(announced.contains("203.0.113.10 via 192.0.2.1 dev eth0 proto bird"), "{announced}");
    assert_eq!(answers_of_both(announced), 10, "{announced}");

    let both = ["nexthop via 192.0.2.1 dev eth0", "nexthop via 192.0.2.2 dev eth0"];
    let spread = &output[spread];
    assert!(both.iter().all(|hop| spread.contains(hop)), "{spread}");
    for digest in ["algorithm ", "configuration ", "tables "] {
        let lines: Vec<&str> = spread.lines().filter(|line| line.starts_with(digest)).collect();
        assert!(lines.len() == 2 && lines[0] == lines[1], "{lines:?}");
    }
    assert_eq!(answers_of_both(spread), 30, "{spread}");
    let packets = spread.lines().filter(|line| line.starts_with("www ") && line.contains(" tcp 80 "));
    let packets: Vec<u64> =
        packets.map(|row| row.split_whitespace().last().unwrap().parse().unwrap()).collect();
    assert!(packets.len() == 2 && packets.iter().all(|count| *count > 0), "{spread}");

    let drain = &output[drain];
    assert_eq!(answers_of_both(drain), 150, "{drain}");
    assert!(!drain.contains("curl: "), "{drain}");
    assert!(drain.contains("203.0.113.10 via 192.0.2.2 dev eth0 proto bird"), "{drain}");
    assert!(both.iter().all(|hop| output[back].contains(hop)), "{}", output[back]);
}

/// The sections of `real-machines.md`.
pub(crate) const INSTALL: &str = "Install the program";
pub(crate) const BACKEND: &str = "Set up each backend";
pub(crate) const BALANCER: &str = "Set up the load balancer";
pub(crate) const REQUEST: &str = "Send a request from a router or a client";

/// Returns a script that creates the network of the tutorials with additional hosts
/// (`name:address`), and sets up the backends `b1` and `b2` as `real-machines.md` describes.
pub(crate) fn real_machines(more_hosts: &[&str]) -> String {
    let first = first_traffic();
    let network = &first.iter().find(|section| section.heading == "Create the network").unwrap().commands;
    let names: String =
        more_hosts.iter().map(|host| format!(" {}", host.split(':').next().unwrap())).collect();
    let hosts: String = more_hosts.iter().map(|host| format!(" {host}")).collect();
    let (all, addresses) = ("switch client lb1 b1 b2", "b2:192.0.2.12");
    assert!(network.contains(all) && network.contains(addresses), "{network}");
    let mut script =
        network.replace(all, &format!("{all}{names}")).replace(addresses, &format!("{addresses}{hosts}"));
    for host in ["b1", "b2"] {
        script += &web_server(host);
        script += &on(host, host, &real_machine(&[INSTALL, BACKEND]));
    }
    script
}

/// Returns a script that starts a web server on the host `host`.
pub(crate) fn web_server(host: &str) -> String {
    format!(
        "mkdir {host}\necho 'this is {host}' > {host}/index.html\n\
         ip netns exec {host} python3 -m http.server --directory {host} 80 > {host}.log 2>&1 &\n"
    )
}

/// Returns a script that runs commands on the host `host`, in a new shell. `run` returns their
/// output under `heading`.
pub(crate) fn on(heading: &str, host: &str, commands: &str) -> String {
    format!("echo '=== {heading}'\non {host} <<'COMMANDS'\n{commands}COMMANDS\n")
}

/// Returns the commands in the sections of `real-machines.md` with these headings.
pub(crate) fn real_machine(headings: &[&str]) -> String {
    let page = sections_named(REAL_MACHINES, &[INSTALL, BACKEND, BALANCER, REQUEST]);
    let chosen = page.iter().filter(|section| headings.contains(&&*section.heading));
    chosen.map(|section| &*section.commands).collect()
}

// Promise: documented-start
#[test]
fn real_machines_tutorial_serves_through_the_units() {
    let script = real_machines(&[])
        + &on("lb1", "lb1", &real_machine(&[INSTALL, BALANCER]))
        + &on("client", "client", &real_machine(&[REQUEST]));
    let output = run(&script);
    assert!(output["lb1"].starts_with("sluicegate "), "{output:?}");
    assert!(output["lb1"].contains("\nbackends     2 serving, 0 draining"), "{output:?}");
    assert!(["this is b1\n", "this is b2\n"].contains(&&*output["client"]), "{output:?}");
}
