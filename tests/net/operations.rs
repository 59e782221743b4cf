//! An operator's half day, by the commands of `docs/operations.md` and no others: a VIP comes, a backend is drained and replaced,
//! the log says more for a while, the change is taken back. Downloads run all the while, and none breaks.

use std::fs;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use testbed::{
    Balancer, Bed, BedSpec, Decap, Downloads, Ended, LbConfig, Process, VIP_V4, VIP_V6, eventually,
};

use crate::scene::{BOUND, Scene, names};

const SHOP: [&str; 2] = ["203.0.113.11", "2001:db8:f::11"];

/// The commands of the page, by the heading that they stand under.
fn commands() -> Vec<(String, String)> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
    let (mut found, mut inside): (Vec<(String, String)>, bool) = (vec![], false);
    for line in fs::read_to_string(page).unwrap().lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside => found.last_mut().unwrap().1 += &format!("{line}\n"),
            _ => found.extend(line.strip_prefix("## ").map(|heading| (heading.into(), String::new()))),
        }
    }
    found
}

/// Both folders of the page are the bed's own, in a mount namespace of whatever is started; then the rest of the arguments.
const AT_HOME: &str = "mount -t tmpfs none /etc && mount -t tmpfs none /run && mkdir /etc/sluicegate /run/sluicegate \
    && mount --bind \"$0\" /etc/sluicegate && mount --bind \"$0\" /run/sluicegate && exec \"$@\"";

struct Day {
    scene: Scene,
    commands: Vec<(String, String)>,
}

impl Day {
    fn begin() -> Self {
        let more = SHOP.map(|text| text.parse::<IpAddr>().unwrap());
        let vips = vec![VIP_V4, VIP_V6, more[0], more[1]];
        let bed = Bed::new(&BedSpec { backends: 4, vips, ..BedSpec::default() }).unwrap();
        let decaps = Decap::start_all(&bed).unwrap();
        let mut config = LbConfig { vips: vec![VIP_V4, VIP_V6], ..LbConfig::new(&bed) };
        config.pool.truncate(3);
        config.pool_keys = "checks = [\"web\"]".into();
        config.cluster = "drain_time = \"60s\"\nflow_timeouts = { closing = \"1s\" }".into();
        config.more = "[check.web]\ntcp = { port = 80 }\nrise = 1\n".into();
        let dir = bed.dir().to_str().unwrap().to_owned();
        let program = bed.program().unwrap().to_str().unwrap().to_owned();
        fs::write(bed.dir().join("sluicegate.toml"), config.toml(&bed, 0)).unwrap();
        std::os::unix::fs::symlink(LbConfig::admin_socket(&bed, 0), bed.dir().join("admin.sock")).unwrap();
        std::os::unix::fs::symlink(&program, bed.dir().join("sluicegate")).unwrap();
        // As the unit has it, whatever else is said.
        let run = format!("exec {program} run --config /etc/sluicegate/sluicegate.toml --machine lb1");
        let command = ["unshare", "--mount", "sh", "-c", AT_HOME, &dir, "sh", "-c", &run];
        let balancer = Balancer::start_by(&command, &bed, 0, &config).unwrap();
        Self { scene: Scene { balancer, decaps, bed }, commands: commands() }
    }

    /// Runs what stands under a heading; each command must end with 0.
    fn does(&self, heading: &str) -> Ended {
        let (_, commands) = self.commands.iter().find(|(found, _)| found == heading).unwrap();
        let dir = self.scene.bed.dir().to_str().unwrap();
        let path = format!("PATH={dir}:{}", std::env::var("PATH").unwrap());
        let args = ["--mount", "env", &path, "sh", "-c", AT_HOME, dir, "sh", "-eux", "-c", commands];
        let ended = Process::to_end(&self.scene.bed.balancers[0].ns, "unshare", &args, 10 * BOUND).unwrap();
        println!("## {heading}\n{}{}", ended.err, ended.out);
        assert_eq!(ended.code, Some(0), "{heading}\n{}", self.scene.diagnosis());
        ended
    }

    fn is_draining(&self, backend: &str) -> bool {
        let rows = self.scene.balancer.ask("/v1/backends").unwrap();
        rows.as_array().unwrap().iter().any(|row| row["name"] == backend && row["state"] == "draining")
    }

    /// Downloads of both families that have begun.
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

    /// Who served them, to their end.
    fn whole(&self, running: [Downloads; 2]) -> Vec<String> {
        let ended: Vec<_> = running.into_iter().flat_map(Downloads::join).collect();
        let broken: Vec<_> = ended.iter().filter(|one| one.broke.is_some()).collect();
        assert!(broken.is_empty(), "{broken:?}\n{}", self.scene.diagnosis());
        ended.into_iter().map(|one| one.backend).collect()
    }

    /// Waits until new requests of both families go to these, and to no other.
    fn is_served_by(&self, wanted: [&str; 3]) {
        let who = || [true, false].map(|ipv4| self.scene.ask(ipv4, 40)).into_iter().flatten();
        let all = || {
            (names(who().map(|reply| reply.backend).collect::<Vec<_>>().iter()) == wanted.into())
                .then_some(())
        };
        assert!(eventually(BOUND, all).is_some(), "not {wanted:?}\n{}", self.scene.diagnosis());
    }
}

const EACH: usize = 20;

#[test]
fn a_half_day_by_the_commands_of_the_documents_breaks_no_download() {
    let day = Day::begin();
    let headings: Vec<&str> = day.commands.iter().map(|(heading, _)| &**heading).collect();
    let all = [
        "Before a change",
        "Add a VIP",
        "Drain a backend",
        "Replace a backend",
        "Keep a change small",
        "Log more for a while",
        "Roll back",
    ];
    assert_eq!(headings, all, "each of them is done below, but for what has no command");

    day.does("Before a change");

    let running = day.downloads(2);
    let said = day.does("Add a VIP").out;
    assert!(said.contains("shop") && said.contains("203.0.113.11"), "{said}");
    for vip in SHOP {
        let vip = (vip.parse::<IpAddr>().unwrap(), Bed::HTTP_PORT).into();
        let replies = day.scene.bed.http_client().get_many(vip, "/", 8, 8);
        assert!(replies.iter().all(|reply| matches!(reply, Ok(reply) if reply.status == 200)), "{replies:?}");
    }
    day.whole(running);

    // The wait is for the downloads of b2, and while it lasts others get what is new.
    let running = day.downloads(5);
    let said = thread::scope(|scope| {
        let drain = scope.spawn(|| day.does("Drain a backend"));
        let meanwhile = eventually(BOUND, || {
            let replies = day.is_draining("b2").then(|| day.scene.ask(true, 40))?;
            day.is_draining("b2").then_some(replies)
        });
        let meanwhile = meanwhile.expect("a drain under way, before and after 40 requests");
        assert!(meanwhile.iter().all(|reply| reply.backend != "b2"), "{meanwhile:?}");
        drain.join().unwrap()
    });
    assert!(said.err.contains("b2: ") && said.err.contains(" left\n"), "{}", said.err);
    assert!(day.whole(running).iter().any(|backend| backend == "b2"));
    day.is_served_by(["b1", "b2", "b3"]);

    let running = day.downloads(2);
    let said = day.does("Replace a backend").out;
    assert!(said.contains("goes back to") && said.contains("is confirmed, and stays"), "{said}");
    day.is_served_by(["b1", "b2", "b4"]);
    assert!(day.whole(running).iter().any(|backend| backend == "b3"), "it goes on where it was");

    let said = day.does("Log more for a while").out;
    let steps = [
        "\ndebug, for ",
        "by uid 0, ends in ",
        ", because: b2 flaps; the file says info\n",
        "info, as the file says\n",
    ];
    assert!(steps.iter().all(|step| format!("\n{said}").contains(step)), "{said}");

    let running = day.downloads(2);
    let said = day.does("Roll back").out;
    assert!(said.contains("nothing changed") && said.contains("as the file says"), "{said}");
    day.is_served_by(["b1", "b2", "b3"]);
    assert!(day.whole(running).iter().any(|backend| backend == "b4"));
    assert!(said.contains("3 serving"), "{said}");
}
