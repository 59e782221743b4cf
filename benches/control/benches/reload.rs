//! Measures how long a reload takes to read the file and to compile the configuration, before it
//! publishes the new snapshot.
//!
//! The configuration has 1,000 VIPs with 200 pools of 100 backends each, in 1.4 MB of TOML. `read`
//! reads and checks the file. `compile` builds the snapshot, in which every Maglev table has
//! changed. Goal: a reload takes at most 300 ms from the file to the live snapshot. Publishing the
//! snapshot takes only a few milliseconds (`tests/net/control.rs`).

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use compile::{CompileInput, Compiler, RuntimeState};
use config::{self, Config};
use criterion::{Criterion, criterion_group, criterion_main};
use forwarder::Generation;
use next_hop::Table;

const POOLS: usize = 200;
const BACKENDS: usize = 100;
const VIPS: usize = 1_000;

/// A temporary folder that is removed when this value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("sluicegate-bench-{}", std::process::id()));
        fs::create_dir(&folder).expect("cannot create a temporary folder");
        fs::write(folder.join("key"), "000102030405060708090a0b0c0d0e0f\n")
            .expect("cannot write the key file");
        fs::set_permissions(folder.join("key"), fs::Permissions::from_mode(0o600))
            .expect("cannot change the mode of a new file");
        Self(folder)
    }

    fn file(&self, shift: usize) -> PathBuf {
        let path = self.0.join(format!("{shift}.toml"));
        fs::write(&path, text(&self.0.join("key"), shift)).expect("cannot write the configuration file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The folder is in the temporary directory, so a failure to remove it does not matter.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the configuration text. A different `shift` changes the weight of every backend.
fn text(key: &Path, shift: usize) -> String {
    let mut text = format!(
        "[cluster]\nname = \"c\"\nhash_key_file = \"{}\"\n[machine.lb1]\ninterfaces = [\"eth0\"]\n\
         addresses = [\"192.0.2.1\", \"2001:db8::1\"]\n",
        key.display()
    );
    for pool in 0..POOLS {
        _ = writeln!(text, "[pool.p{pool}]\nbackends = [");
        for backend in 0..BACKENDS {
            let weight = 1 + (backend + shift) % 3;
            let address = format!("2001:db8:2:{pool:x}::{backend:x}");
            _ = writeln!(
                text,
                "  {{ name = \"p{pool}-{backend}\", address = \"{address}\", weight = {weight} }},"
            );
        }
        text += "]\n";
    }
    for vip in 0..VIPS {
        let services = format!("{{ ports = [80], protocol = \"tcp\", pool = \"p{}\" }}", vip % POOLS);
        _ = writeln!(text, "[vip.v{vip}]\naddresses = [\"2001:db8:1::{vip:x}\"]\nservices = [{services}]");
    }
    text
}

fn load(path: &Path) -> Config {
    config::load(path).expect("the configuration is valid").0
}

fn reload(c: &mut Criterion) {
    let folder = Folder::new();
    let files = [folder.file(0), folder.file(1)];
    let mut group = c.benchmark_group("reload");
    group.sample_size(10).measurement_time(Duration::from_secs(8));
    group.bench_function("read", |b| b.iter(|| load(&files[0])));
    let configs = files.each_ref().map(|file| load(file));
    let (mut compiler, mut generation) = (Compiler::default(), 0_u64);
    group.bench_function("compile", |b| {
        b.iter_custom(|count| {
            let mut took = Duration::ZERO;
            for _ in 0..count {
                generation += 1;
                let from = CompileInput {
                    generation: Generation(generation),
                    machine: "lb1",
                    next_hops: &Table::default(),
                    runtime_state: &RuntimeState::default(),
                    states: &[],
                    now: Duration::from_secs(generation),
                };
                let start = Instant::now();
                let compiled = compiler.compile(&configs[(generation % 2) as usize], from);
                took += start.elapsed();
                black_box(compiled).expect("cannot compile a valid configuration");
            }
            took
        });
    });
    group.finish();
}

criterion_group!(benches, reload);
criterion_main!(benches);
