//! Checks that a test runs every command that the documentation shows.
//!
//! A page with shell blocks must be named by one of the [`RUNNERS`], which run all shell blocks of
//! the pages that they name. Tests do not run commands in text blocks, so each such command needs
//! an exception with a reason.

use std::fs;
use std::path::Path;

use testbed::{other_commands, sections};

use super::pages::Pages;

/// Returns a finding for each page and each text block with commands that no test runs.
pub(super) fn check(checkout: &Path, pages: &Pages) -> Vec<String> {
    let runners: String =
        RUNNERS.iter().map(|name| fs::read_to_string(checkout.join(name)).unwrap_or_default()).collect();
    unchecked(pages, &runners, &EXCEPTIONS)
}

fn unchecked(pages: &Pages, runners: &str, exceptions: &[Exception]) -> Vec<String> {
    let mut found = Vec::new();
    let mut used = vec![false; exceptions.len()];
    for (name, text) in pages {
        let Some(page) = name.strip_prefix("docs/") else { continue };
        if !sections(text).is_empty() && !runners.contains(&format!("{page}\"")) {
            found.push(format!("{name}:1: no test runs the commands of this page; see {RUNNERS:?}"));
        }
        for (line, command) in other_commands(text, &PROGRAMS) {
            let fits = |exception: &Exception| exception.page == page && command.contains(exception.command);
            match exceptions.iter().position(fits) {
                Some(at) => used[at] = true,
                None => found.push(format!(
                    "{name}:{line}: no test runs `{command}`; move it to a shell block or add an exception to xtask/src/tidy/commands.rs"
                )),
            }
        }
    }
    let unused = exceptions.iter().zip(used).filter(|(_, used)| !used);
    found.extend(unused.map(|(Exception { page, command, reason }, _)| {
        format!("docs/{page}:1: the exception for `{command}` matches no text block ({reason})")
    }));
    found
}

/// An exception for commands that no test runs.
struct Exception {
    page: &'static str,
    /// A part of the block's first line.
    command: &'static str,
    reason: &'static str,
}

const fn exception(page: &'static str, command: &'static str, reason: &'static str) -> Exception {
    Exception { page, command, reason }
}

/// The files that run the commands of pages.
const RUNNERS: [&str; 6] = [
    "tests/net/quick_start.rs",
    "tests/net/how_to_pages.rs",
    "tests/net/operations.rs",
    "tests/net/readiness.rs",
    "tests/cluster/routers_page.rs",
    "xtask/src/try_packages.rs",
];
/// Program names that identify a command in a text block.
const PROGRAMS: [&str; 24] = [
    "apt-get",
    "bpftool",
    "cat",
    "cp",
    "curl",
    "dpkg",
    "ethtool",
    "export",
    "for",
    "install",
    "ip",
    "ipvsadm",
    "journalctl",
    "memcached",
    "mkdir",
    "modprobe",
    "podman",
    "printf",
    "promtool",
    "scp",
    "sluicegate",
    "ssh",
    "sysctl",
    "systemctl",
];
const EXCEPTIONS: [Exception; 15] = [
    exception("how-to/add-a-machine.md", "", "copies files between two machines with scp"),
    exception("how-to/check-backends.md", "install -m", "installs units of systemd on the machine"),
    exception(
        "how-to/check-backends.md",
        "systemctl",
        "needs systemd for the socket; tests/net/exec.rs passes the socket in the same way",
    ),
    exception(
        "how-to/configure-interfaces.md",
        "ip route replace",
        "needs two uplinks; tests/net/uplinks.rs has such a route",
    ),
    exception(
        "how-to/configure-interfaces.md",
        "ignore_routes_with_linkdown",
        "needs two uplinks; tests/net/uplinks.rs checks the setting",
    ),
    exception("how-to/connect-routers.md", "ip nexthop", "shows one option of a longer router setup"),
    exception("how-to/migrate.md", "ipvsadm", "needs the kernel module ip_vs"),
    exception("how-to/monitor.md", "mkdir", "copies files from another machine with scp"),
    exception("how-to/monitor.md", "promtool", "needs a running Prometheus on another machine"),
    exception(
        "how-to/monitor.md",
        "sluicegate probe",
        "runs until it is stopped; tests/net/probe.rs runs it",
    ),
    exception("how-to/monitor.md", "systemctl", "installs the prober as a service on another machine"),
    exception("how-to/restart-a-cluster.md", "for m in", "connects to other machines with ssh"),
    exception(
        "how-to/simulate-a-change.md",
        "$ sluicegate",
        "simulates ten million flows, which takes minutes",
    ),
    exception("how-to/trace-a-packet.md", "sluicegate trace", "needs a router; tests/net/tracing.rs runs it"),
    exception("how-to/use-the-status-page.md", "ssh", "forwards a port over ssh"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_without_a_runner_is_a_finding() {
        let page = "# A\n```sh\nip link\n```\n```text\nscp a b:\n```\n```text\nip route\n```\n";
        let pages = Pages::from([("docs/how-to/a.md".to_owned(), page.to_owned())]);
        let allowed =
            [exception("how-to/a.md", "scp", "two machines"), exception("how-to/b.md", "scp", "gone")];
        let found = unchecked(&pages, "[\"how-to/a.md\"]", &allowed);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("docs/how-to/a.md:8: no test runs `ip route`; "), "{found:?}");
        assert!(found[1].starts_with("docs/how-to/b.md:1: the exception for `scp` matches"), "{found:?}");
        let found = unchecked(&pages, "[\"how-to/aa.md\"]", &allowed[..1]);
        assert!(found[0].starts_with("docs/how-to/a.md:1: no test runs"), "{found:?}");
    }
}
