//! Runs the commands of four how-to pages on one balancer. The commands add a VIP, drain a backend,
//! replace a backend, roll this change back, and change the log level for a while. Downloads run at
//! the same time, and none may break.

use std::fs;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use testbed::{
    Balancer, Bed, BedSpec, Decap, Downloads, Ended, LbConfig, Process, Section, VIP_V4, VIP_V6, eventually,
};

use crate::scene::{BOUND, Scene, names};

const SHOP: &str = "203.0.113.11";
/// The addresses of b2 and b3 in the testbed and on the pages.
const ADDRESSES: [(&str, &str); 2] = [("198.18.1.2", "192.0.2.12"), ("198.18.1.3", "192.0.2.13")];

/// The pages in the order in which the test runs their commands.
const PAGES: [&str; 4] =
    ["add-a-vip.md", "drain-a-backend.md", "replace-a-backend.md", "change-the-log-level.md"];

/// Returns the sections of all pages, each with the name of its page.
fn sections() -> Vec<(&'static str, Section)> {
    let read =
        |page| fs::read_to_string(format!("{}/../docs/how-to/{page}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let pages = PAGES
        .iter()
        .flat_map(|page| testbed::sections(&read(page)).into_iter().map(|section| (*page, section)));
    pages.collect()
}

/// A shell script that mounts the testbed's directory at `/etc/sluicegate` and `/run/sluicegate` in
/// its own mount namespace, and then runs the command in its remaining arguments.
const AT_HOME: &str = "mount -t tmpfs none /etc && mount -t tmpfs none /run && mkdir /etc/sluicegate /run/sluicegate \
    && mount --bind \"$0\" /etc/sluicegate && mount --bind \"$0\" /run/sluicegate && exec \"$@\"";

struct Day {
    scene: Scene,
    sections: Vec<(&'static str, Section)>,
}

impl Day {
    fn begin() -> Self {
        let vips = vec![VIP_V4, VIP_V6, SHOP.parse::<IpAddr>().unwrap()];
        let bed = Bed::new(&BedSpec { backends: 3, vips, ..BedSpec::default() }).unwrap();
        for ((here, there), host) in ADDRESSES.iter().zip(&bed.backends[1..]) {
            host.ns.ip(&format!("addr add {there}/32 dev lo")).unwrap();
            bed.router.ip(&format!("route add {there}/32 via {here}")).unwrap();
        }
        let decaps = Decap::start_all(&bed).unwrap();
        let mut config = LbConfig { vips: vec![VIP_V4, VIP_V6], ..LbConfig::new(&bed) };
        config.pool.truncate(2);
        config.pool_keys = "checks = [\"web\"]".into();
        config.cluster = "drain_time = \"60s\"\nflow_timeouts = { closing = \"1s\" }".into();
        config.more = "[check.web]\ntcp = { port = 80 }\nrise = 1\n".into();
        let dir = bed.dir().to_str().unwrap().to_owned();
        let program = bed.program().unwrap().to_str().unwrap().to_owned();
        let text =
            ADDRESSES.iter().fold(config.toml(&bed, 0), |text, (here, there)| text.replace(here, there));
        fs::write(bed.dir().join("sluicegate.toml"), text).unwrap();
        std::os::unix::fs::symlink(LbConfig::admin_socket(&bed, 0), bed.dir().join("admin.sock")).unwrap();
        std::os::unix::fs::symlink(&program, bed.dir().join("sluicegate")).unwrap();
        // The command line is the same as in the systemd unit.
        let run = format!("exec {program} run --config /etc/sluicegate/sluicegate.toml --machine lb1");
        let command = ["unshare", "--mount", "sh", "-c", AT_HOME, &dir, "sh", "-c", &run];
        let balancer = Balancer::start_by(&command, &bed, 0, &config).unwrap();
        Self { scene: Scene { balancer, decaps, bed }, sections: sections() }
    }

    /// Runs the commands below a heading, each of which must exit with status 0.
    fn does(&self, heading: &str) -> Ended {
        let (page, section) = self.sections.iter().find(|(_, section)| section.heading == heading).unwrap();
        let dir = self.scene.bed.dir().to_str().unwrap();
        let path = format!("PATH={dir}:{}", std::env::var("PATH").unwrap());
        let commands = &section.commands;
        let args = ["--mount", "env", &path, "sh", "-c", AT_HOME, dir, "sh", "-eux", "-c", commands];
        let ended = Process::to_end(&self.scene.bed.balancers[0].ns, "unshare", &args, 10 * BOUND).unwrap();
        println!("{page}: {heading}\n{}{}", ended.err, ended.out);
        assert_eq!(ended.code, Some(0), "{heading}\n{}", self.scene.diagnosis());
        ended
    }

    fn is_draining(&self, backend: &str) -> bool {
        let rows = self.scene.balancer.ask("/v1/backends").unwrap();
        rows.as_array().unwrap().iter().any(|row| row["name"] == backend && row["state"] == "draining")
    }

    /// Starts downloads over IPv4 and IPv6, and waits until all of them have begun.
    fn downloads(&self, seconds: u64) -> [Downloads; 2] {
        [true, false].map(|ipv4| {
            let vip = self.scene.bed.vip(ipv4, Bed::HTTP_PORT);
            let running =
                Downloads::start(&self.scene.bed.client.ns, vip, EACH, Duration::from_secs(seconds));
            let begun = eventually(BOUND, || (running.begun() == EACH).then_some(()));
            assert!(begun.is_some(), "{} of {EACH}\n{}", running.begun(), self.scene.diagnosis());
            running
        })
    }

    /// Waits until the downloads end, and checks that none broke. Returns the backends that served
    /// the downloads.
    fn whole(&self, running: [Downloads; 2]) -> Vec<String> {
        let ended: Vec<_> = running.into_iter().flat_map(Downloads::join).collect();
        let broken: Vec<_> = ended.iter().filter(|one| one.broke.is_some()).collect();
        assert!(broken.is_empty(), "{broken:?}\n{}", self.scene.diagnosis());
        ended.into_iter().map(|one| one.backend).collect()
    }

    /// Waits until new requests over IPv4 and IPv6 are served by exactly these backends.
    fn is_served_by(&self, wanted: [&str; 2]) {
        let who = || [true, false].map(|ipv4| self.scene.ask(ipv4, 40)).into_iter().flatten();
        let all = || {
            (names(who().map(|reply| reply.backend).collect::<Vec<_>>().iter()) == wanted.into())
                .then_some(())
        };
        assert!(eventually(BOUND, all).is_some(), "not {wanted:?}\n{}", self.scene.diagnosis());
    }
}

const EACH: usize = 20;

// Promise: documented-changes
#[test]
fn how_to_page_commands_break_no_download() {
    let day = Day::begin();
    let have: Vec<_> = day.sections.iter().map(|(page, section)| (*page, &*section.heading)).collect();
    let [add, drain, replace, log] = PAGES;
    // `how_to_pages` runs the sections for backends and clients.
    let all = [
        (add, ""),
        (add, "Prepare each backend"),
        (add, "Save the current configuration"),
        (add, "Add the VIP"),
        (add, "Reload"),
        (add, "Send a request"),
        (drain, "Drain the backend"),
        (drain, "End the drain"),
        (replace, ""),
        (replace, "Change the configuration"),
        (replace, "Reload with a time limit"),
        (replace, "Confirm the change"),
        (replace, "Roll back"),
        (log, "Set the level"),
        (log, "Return to the configured level"),
    ];
    assert_eq!(have, all, "the test must run each section");

    day.does("Save the current configuration");

    let running = day.downloads(2);
    let checked = day.does("Add the VIP").out;
    assert!(checked.contains("shop"), "{checked}");
    let listed = day.does("Reload").out;
    assert!(listed.contains("shop") && listed.contains("203.0.113.11"), "{listed}");
    let vip = (SHOP.parse::<IpAddr>().unwrap(), Bed::HTTP_PORT).into();
    let replies = day.scene.bed.http_client().get_many(vip, "/", 8, 8);
    assert!(replies.iter().all(|reply| matches!(reply, Ok(reply) if reply.status == 200)), "{replies:?}");
    day.whole(running);

    // The drain command waits until the downloads from b2 end. During the drain, new requests go to
    // other backends.
    let running = day.downloads(5);
    let drained = thread::scope(|scope| {
        let drain = scope.spawn(|| day.does("Drain the backend"));
        let replies = eventually(BOUND, || {
            let replies = day.is_draining("b2").then(|| day.scene.ask(true, 40))?;
            day.is_draining("b2").then_some(replies)
        });
        let replies = replies.expect("no drain was in progress before and after 40 requests");
        assert!(replies.iter().all(|reply| reply.backend != "b2"), "{replies:?}");
        drain.join().unwrap()
    });
    assert!(drained.err.contains("b2: ") && drained.err.contains(" left\n"), "{}", drained.err);
    day.does("End the drain");
    assert!(day.whole(running).iter().any(|backend| backend == "b2"));
    day.is_served_by(["b1", "b2"]);

    let running = day.downloads(2);
    day.does("Change the configuration");
    let on_trial = day.does("Reload with a time limit").out;
    assert!(on_trial.contains("is rolled back to"), "{on_trial}");
    let confirmed = day.does("Confirm the change").out;
    assert!(confirmed.contains("confirmed\n"), "{confirmed}");
    day.is_served_by(["b1", "b3"]);
    assert!(day.whole(running).iter().any(|backend| backend == "b2"), "its flows continue");

    let running = day.downloads(2);
    let rolled_back = day.does("Roll back").out;
    assert!(
        rolled_back.contains("nothing changed") && rolled_back.contains("in sync with the file"),
        "{rolled_back}"
    );
    day.is_served_by(["b1", "b2"]);
    assert!(day.whole(running).iter().any(|backend| backend == "b3"));
    assert!(rolled_back.contains("2 serving"), "{rolled_back}");

    let level = day.does("Set the level").out;
    let steps = ["\ndebug, set ", " ago by uid 0, ends in ", ", reason: b2 flaps; configured level: info\n"];
    assert!(steps.iter().all(|step| format!("\n{level}").contains(step)), "{level}");
    let level = day.does("Return to the configured level").out;
    assert!(level.ends_with("info (from the configuration)\n"), "{level}");
}
