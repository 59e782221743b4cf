//! Measures how memory use, reload time and packet cost grow with the size of the configuration,
//! and how the connection table grows with the number of flows.
//!
//! The output is CSV. `configurations` and `flows` print one of the two tables, and without an
//! argument, both are printed. Each row runs in its own process, so that rows do not share memory.
//! The module `flows` describes its rows. `flows 100000000` measures another number of flows.
//!
//! The rows of `configurations` vary the number of VIPs, pools and backends by a factor of 1,000.
//! `read_ms` is the least processor time to read and check the file, and `compile_ms` the least
//! processor time to build a snapshot in which every table has changed. `resident_mb` is the memory
//! use with one configuration and its snapshot, and `peak_mb` is the maximum memory use while a
//! second snapshot was built. `packet_ns` is the time per packet for 100,000 IPv6 flows that are
//! encapsulated with GRE over IPv6: the lowest median of a round, so that other programs have
//! little effect. `median_ns` is the median over all rounds.

mod flows;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use compile::{CompileInput, Compiler, RuntimeState, destinations};
use config::Config;
use forwarder::{Generation, Live, Now, Snapshot};
use next_hop::{Resolved, Table};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use packet::Tags;
use sluicegate_benches::{Batch, DEFAULT_BATCH, frame_v6, pipeline};

/// The numbers of VIPs, pools and backends in the configuration of one row.
#[derive(Clone, Copy)]
struct Point {
    axis: &'static str,
    vips: usize,
    pools: usize,
    /// The number of backends per pool.
    backends: usize,
    slots: u32,
}

const fn point(axis: &'static str, [vips, pools, backends]: [usize; 3], slots: u32) -> Point {
    Point { axis, vips, pools, backends, slots }
}

const POINTS: [Point; 16] = [
    point("vips", [10, 10, 10], 65_537),
    point("vips", [100, 10, 10], 65_537),
    point("vips", [1_000, 10, 10], 65_537),
    point("vips", [10_000, 10, 10], 65_537),
    point("pools", [1_000, 1, 10], 65_537),
    point("pools", [1_000, 10, 10], 65_537),
    point("pools", [1_000, 100, 10], 65_537),
    point("pools", [1_000, 1_000, 10], 65_537),
    point("backends", [100, 100, 1], 100_003),
    point("backends", [100, 100, 10], 100_003),
    point("backends", [100, 100, 100], 100_003),
    point("backends", [100, 100, 1_000], 100_003),
    point("all", [10, 1, 100], 65_537),
    point("all", [100, 10, 100], 65_537),
    point("all", [1_000, 100, 100], 65_537),
    point("all", [10_000, 1_000, 100], 65_537),
];

fn main() {
    // Cargo passes `--bench`, and `cargo xtask bench scale/flows` passes `scale/flows`.
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let words: Vec<&str> = arguments.iter().map(|word| word.strip_prefix("scale/").unwrap_or(word)).collect();
    match words[..] {
        [CONFIGURATION, row] => println!("{}", measure(&POINTS[number(row)])),
        [TABLE, count] => println!("{}", flows::measure(number(count))),
        ["configurations"] => configurations(),
        ["flows"] => tables(&flows::COUNTS.map(|count| count.to_string())),
        ["flows", ref counts @ ..] => tables(counts),
        [] => {
            configurations();
            tables(&flows::COUNTS.map(|count| count.to_string()));
        }
        _ => panic!("unknown arguments {words:?}, expected `configurations` or `flows`"),
    }
}

fn number(word: &str) -> usize {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is not a number"))
}

fn configurations() {
    println!("axis,vips,pools,backends,file_kb,read_ms,compile_ms,resident_mb,peak_mb,packet_ns,median_ns");
    (0..POINTS.len()).for_each(|row| print!("{}", in_new_process(CONFIGURATION, &row.to_string())));
}

fn tables(counts: &[impl AsRef<str>]) {
    println!("{}", flows::HEAD);
    counts.iter().for_each(|count| print!("{}", in_new_process(TABLE, count.as_ref())));
}

/// Runs this program again and returns its output.
fn in_new_process(what: &str, of: &str) -> String {
    let this = std::env::current_exe().expect("this program has a path");
    let output = Command::new(this).args([what, of]).output().expect("cannot start this program again");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what} {of}: {stderr}");
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

fn measure(point: &Point) -> String {
    let folder = Folder::new();
    let files = [0, 1].map(|shift| folder.file(point, shift));
    let bytes = fs::metadata(&files[0]).expect("cannot read the size of a written file").len();
    let before = resident("VmRSS");
    let mut compiler = Compiler::default();
    let (first, table) = load(&files[0], &mut compiler, 1, None);
    let kept = resident("VmRSS") - before;
    let (mut second, mut table) = load(&files[1], &mut compiler, 2, Some(table));
    let peak = resident("VmHWM") - before;
    drop(first);
    let (mut read, mut compile) = (second.read, second.compile);
    let start = Instant::now();
    let mut reloads = 0;
    while reloads < RELOADS || start.elapsed() < REPEATED_FOR {
        (second, table) = load(&files[reloads % 2], &mut compiler, reloads as u64 + 3, Some(table));
        (read, compile) = (read.min(second.read), compile.min(second.compile));
        reloads += 1;
    }
    let live = Live::new(second.snapshot);
    let (packet, median) = cost(&live, point.vips);
    format!(
        "{},{},{},{},{},{:.2},{:.2},{kept:.1},{peak:.1},{packet:.1},{median:.1}",
        point.axis,
        point.vips,
        point.pools,
        point.pools * point.backends,
        bytes / 1_000,
        read.as_secs_f64() * 1e3,
        compile.as_secs_f64() * 1e3,
    )
}

/// A loaded configuration, and the processor time for loading it.
struct Loaded {
    _config: Config,
    snapshot: Snapshot,
    read: Duration,
    compile: Duration,
}

/// Loads and compiles a configuration in the same way as a reload. Only the first load resolves
/// next hops; later calls get the next hops in `ways`.
fn load(path: &Path, compiler: &mut Compiler, generation: u64, ways: Option<Table>) -> (Loaded, Table) {
    let start = processor_time();
    let config = config::load(path).expect("the configuration is valid").0;
    let read = processor_time() - start;
    let ways = ways.unwrap_or_else(|| Table {
        next_hops: destinations(&config, "lb1", None)
            .into_iter()
            .map(|address| (address, Ok(WAY).into()))
            .collect::<HashMap<_, _>>(),
        ..Table::default()
    });
    let runtime_state = RuntimeState::default();
    let from = CompileInput {
        generation: Generation(generation),
        machine: "lb1",
        next_hops: &ways,
        runtime_state: &runtime_state,
        states: &[],
        now: Duration::from_secs(generation),
    };
    let start = processor_time();
    let snapshot = compiler.compile(&config, from).expect("cannot compile a valid configuration").snapshot;
    let compile = processor_time() - start;
    (Loaded { _config: config, snapshot, read, compile }, ways)
}

/// Returns the time per packet in ns: the lowest median of a round, and the median of all rounds.
fn cost(live: &Live, vips: usize) -> (f64, f64) {
    let (mut pipeline, _) = pipeline(live);
    let mut batch = Batch::default();
    let mut now = Now::from_nanos(1_000_000_000);
    for flags in [0x02, 0x10, 0x10] {
        let mut flow = 0;
        while flow < FLOWS {
            batch.run(&mut pipeline, now, || {
                flow += 1;
                frame((flow - 1) % FLOWS, vips, flags)
            });
        }
        now = Now::from_nanos(now.nanos() + 500_000_000);
    }
    let mut state = 1_u32;
    rounds(DEFAULT_BATCH, || {
        now = Now::from_nanos(now.nanos() + 10_000);
        batch.run(&mut pipeline, now, || {
            state = state.wrapping_add(0x9e37_79b1);
            let scaled = (u64::from(state) * u64::from(FLOWS)) >> 32;
            frame(u32::try_from(scaled).unwrap_or(0), vips, 0x10)
        })
    })
}

/// Calls `time` in rounds. Each call returns the duration of `count` operations. Returns the time
/// per operation in ns: the lowest median of a round, and the median of all rounds.
fn rounds(count: usize, mut time: impl FnMut() -> Duration) -> (f64, f64) {
    let mut medians: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let mut times: Vec<Duration> = (0..TIMES).map(|_| time()).collect();
            times.sort_unstable();
            times[TIMES / 2]
        })
        .collect();
    medians.sort_unstable();
    let each = |time: Duration| time.as_secs_f64() * 1e9 / count as f64;
    (each(medians[0]), each(medians[ROUNDS / 2]))
}

/// Returns a frame of flow `flow`. Consecutive flows have VIPs that are far apart.
fn frame(flow: u32, vips: usize, flags: u8) -> [u8; 74] {
    let vip = (u64::from(flow.wrapping_mul(0x9e37_79b1)) * vips as u64) >> 32;
    let address = 0x2001_0db8_0001_u128 << 80 | u128::from(vip);
    let mut frame = frame_v6(flow, &address.to_be_bytes());
    frame[67] = flags;
    frame
}

/// Returns the processor time of all threads of this process.
fn processor_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("getrusage of this process cannot fail");
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Returns a memory figure of this process in MB. `VmRSS` is the current memory use, and `VmHWM`
/// the maximum so far.
fn resident(what: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("cannot read /proc/self/status");
    let line = status.lines().find_map(|line| line.strip_prefix(what)).expect("Linux reports this value");
    let kib = line.split_whitespace().nth(1).and_then(|word| word.parse::<f64>().ok());
    kib.expect("the value is a number") * 1.024e-3
}

/// A temporary folder that is removed when this value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("sluicegate-scale-{}", std::process::id()));
        fs::create_dir(&folder).expect("cannot create a temporary folder");
        let key = folder.join("key");
        fs::write(&key, "000102030405060708090a0b0c0d0e0f\n").expect("cannot write the key file");
        fs::set_permissions(key, fs::Permissions::from_mode(0o600))
            .expect("cannot change the mode of a new file");
        Self(folder)
    }

    /// Writes the configuration file. A different `shift` changes the weight of every backend.
    fn file(&self, point: &Point, shift: usize) -> PathBuf {
        let path = self.0.join(format!("{shift}.toml"));
        fs::write(&path, text(&self.0.join("key"), point, shift))
            .expect("cannot write the configuration file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The folder is in the temporary directory, so a failure to remove it does not matter.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(key: &Path, point: &Point, shift: usize) -> String {
    let mut text = format!(
        "[cluster]\nname = \"c\"\nhash_key_file = \"{}\"\ntable_size = {}\n[io]\nmax_vips = 16384\n[machine.lb1]\ninterfaces = [\"eth0\"]\n\
         addresses = [\"192.0.2.1\", \"2001:db8::1\"]\n",
        key.display(),
        point.slots
    );
    for pool in 0..point.pools {
        _ = writeln!(text, "[pool.p{pool}]\nbackends = [");
        for backend in 0..point.backends {
            let weight = 1 + (backend + shift) % 3;
            let address = format!("2001:db8:2:{pool:x}::{backend:x}");
            _ = writeln!(
                text,
                "  {{ name = \"p{pool}-{backend}\", address = \"{address}\", weight = {weight} }},"
            );
        }
        text += "]\n";
    }
    for vip in 0..point.vips {
        let services = format!("{{ ports = [80], protocol = \"tcp\", pool = \"p{}\" }}", vip % point.pools);
        _ = writeln!(text, "[vip.v{vip}]\naddresses = [\"2001:db8:1::{vip:x}\"]\nservices = [{services}]");
    }
    text
}

const WAY: Resolved = Resolved {
    interface: 2,
    leaves_by: 2,
    tags: Tags::NONE,
    destination: [2, 0, 0, 0, 0, 2],
    source: [2, 0, 0, 0, 0, 1],
    mtu_bytes: 1_500,
    gateway: None,
    preferred_source: None,
};
const FLOWS: u32 = 100_000;
/// The minimum number of reloads after the reload whose memory is measured.
const RELOADS: usize = 6;
/// Short operations are repeated for at least this time.
const REPEATED_FOR: Duration = Duration::from_secs(2);
const ROUNDS: usize = 101;
/// The number of measured times in a round.
const TIMES: usize = 1_000;
/// The first arguments of a process that measures one row.
const CONFIGURATION: &str = "configuration";
const TABLE: &str = "table";
