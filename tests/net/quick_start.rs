//! `docs/quick-start.md` by its own commands and no others, on one machine and on machines of one's own.
//!
//! In: the page's blocks of commands. Out: answers of both backends in the client's shell.
//! Not here: real machines and systemd. The hosts of the second part are namespaces, with an `/etc` and a `/run` of their own, and
//! `systemctl.sh` stands in for systemd.
//! Invariant: all of it is in namespaces of one process (network, mounts, processes), and ends with it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use testbed::{Namespace, Process, TempDir, binary};

const PAGE: &str = include_str!("../../docs/quick-start.md");
const SEVERAL: &str = "On machines of your own";
/// Ten times what a part takes.
const BOUND: Duration = Duration::from_secs(300);

/// The commands of one section, `###`, of a part, `##`.
struct Section {
    part: &'static str,
    heading: &'static str,
    commands: String,
}

/// All that have commands, in the page's order.
fn sections() -> Vec<Section> {
    let mut found = vec![Section { part: "", heading: "", commands: String::new() }];
    let mut inside = false;
    for line in PAGE.lines() {
        let part = found.last().unwrap().part;
        let begun = match (line.strip_prefix("## "), line.strip_prefix("### ")) {
            _ if inside => None,
            (Some(part), _) => Some((part, "")),
            (_, Some(heading)) => Some((part, heading)),
            _ => None,
        };
        match (line, begun) {
            ("```", _) => inside = false,
            ("```sh", _) => inside = true,
            (_, Some((part, heading))) => found.push(Section { part, heading, commands: String::new() }),
            _ if inside => found.last_mut().unwrap().commands += &format!("{line}\n"),
            _ => {}
        }
    }
    found.retain(|section| !section.commands.is_empty());
    found
}

/// Runs sections with their headings printed; what each of them printed.
fn run(script: &str) -> BTreeMap<String, String> {
    let (ns, dir) = (Namespace::new("quick-start").unwrap(), TempDir::new().unwrap());
    let path = dir.path().to_str().unwrap();
    let (file, systemctl) = (dir.path().join("script"), dir.path().join("bin/systemctl"));
    fs::create_dir(dir.path().join("bin")).unwrap();
    fs::write(&systemctl, include_str!("systemctl.sh")).unwrap();
    fs::set_permissions(&systemctl, Permissions::from_mode(0o755)).unwrap();
    // What a reader waits for at most, longer for a busy machine.
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
    parts.map(|(heading, said)| (heading.to_owned(), said.to_owned())).collect()
}

/// How many lines of `uniq -c` are of a backend.
fn answers(said: &str, backend: &str) -> usize {
    let wanted = format!("this is {backend}");
    let counts = said.lines().filter_map(|line| line.trim().split_once(' '));
    counts.filter(|(_, who)| *who == wanted).map(|(count, _)| count.parse::<usize>().unwrap()).sum()
}

#[test]
fn on_one_machine_its_commands_bring_traffic_a_drain_and_an_end() {
    let all = sections();
    let named = all.iter().filter(|section| section.part != SEVERAL);
    let headings: Vec<&str> = named.clone().map(|section| section.heading).collect();
    let known =
        ["", "The network", "The client", "The backends", "The balancer", "Traffic", "A drain", "The end"];
    assert_eq!(headings, known, "each of them is done below, and looked at");
    let script = named.fold(String::new(), |text, Section { heading, commands, .. }| {
        text + &format!("echo '=== /{heading}'\n{commands}")
    });
    let said = run(&script);
    assert!(said["/"].starts_with("sluicegate "), "{said:?}");
    assert!(said["/The balancer"].contains("no problem found\n"), "{said:?}");
    assert!(said["/The balancer"].contains("\nbackends     2 serving, 0 draining"), "{said:?}");
    let traffic = &said["/Traffic"];
    let shares = ["b1", "b2"].map(|backend| answers(traffic, backend));
    assert!(shares[0] > 0 && shares[1] > 0 && shares[0] + shares[1] == 30, "{traffic}");
    assert!(traffic.contains("\n  backend  b"), "{traffic}");
    let drain = &said["/A drain"];
    assert_eq!((answers(drain, "b1"), answers(drain, "b2")), (10, 0), "{drain}");
    assert!(drain.contains(": trying it\n"), "the events have the order: {drain}");
}

#[test]
fn on_machines_of_ones_own_its_commands_bring_traffic_through_the_units() {
    let all = sections();
    let named: Vec<&Section> = all.iter().filter(|section| section.part == SEVERAL).collect();
    let headings: Vec<&str> = named.iter().map(|section| section.heading).collect();
    assert_eq!(headings, HOSTS.map(|(heading, _)| heading), "each of them is done below");
    let network = |section: &&Section| section.part.is_empty() || section.heading == "The network";
    let mut script: String = all.iter().filter(network).map(|section| &*section.commands).collect();
    for (section, (_, hosts)) in named.iter().zip(HOSTS) {
        for host in hosts {
            if section.heading.contains("backend") {
                let _ = writeln!(
                    script,
                    "mkdir {host}\necho 'this is {host}' > {host}/index.html\n\
                     ip netns exec {host} python3 -m http.server --directory {host} 80 > {host}.log 2>&1 &"
                );
            }
            let _ =
                write!(script, "echo '=== {host}'\non {host} <<'COMMANDS'\n{}COMMANDS\n", section.commands);
        }
    }
    let said = run(&script);
    assert!(said["lb1"].contains("\nbackends     2 serving, 0 draining"), "{said:?}");
    assert!(["this is b1\n", "this is b2\n"].contains(&&*said["client"]), "{said:?}");
}

/// The sections of the second part, and the hosts on which each is done.
const HOSTS: [(&str, &[&str]); 3] = [
    ("On each backend", &["b1", "b2"]),
    ("On the balancer", &["lb1"]),
    ("On the router, or on one client", &["client"]),
];
