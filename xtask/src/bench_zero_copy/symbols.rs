//! Assigns instructions to functions, and functions to the parts of a forwarder.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::counts::{Counts, KERNEL_STARTS};

/// The parts of the whole machine between which instructions are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Part {
    /// The driver of the NIC.
    Driver,
    /// The rest of the kernel: interrupts, redirects, the kernel's side of AF_XDP, and the network
    /// stack.
    Kernel,
    /// System calls: their entry and exit, and the common code of sockets and poll.
    SystemCalls,
    /// BPF programs, their maps and their helper functions, without redirects.
    Xdp,
    /// The user-space side of the rings: the crate `datapath`.
    Rings,
    /// The main loop of a packet thread: the crate `engine`.
    Engine,
    /// Packet decisions: the crate `forwarder` and its dependencies.
    Pipeline,
    /// The connection table and the fragment table.
    Table,
    /// Other user-space code, such as the C library and other programs.
    User,
}

impl Part {
    pub(crate) const ALL: [Self; 9] = [
        Self::Driver,
        Self::Kernel,
        Self::SystemCalls,
        Self::Xdp,
        Self::Rings,
        Self::Engine,
        Self::Pipeline,
        Self::Table,
        Self::User,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Kernel => "kernel",
            Self::SystemCalls => "system calls",
            Self::Xdp => "XDP",
            Self::Rings => "rings",
            Self::Engine => "engine",
            Self::Pipeline => "pipeline",
            Self::Table => "table",
            Self::User => "other user",
        }
    }

    /// Returns the part of a kernel function, or `None` if the processor is idle in it. A name of
    /// `/proc/kallsyms` ends with the module in brackets.
    fn of_kernel(name: &str) -> Option<Self> {
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        if IDLE.contains(&name) {
            None
        } else if name.ends_with("[igb]") || name.ends_with("[virtio_net]") || starts(DRIVER) {
            Some(Self::Driver)
        } else if name.ends_with("[bpf]") || starts(BPF) {
            Some(Self::Xdp)
        } else if starts(SYSTEM_CALLS) {
            Some(Self::SystemCalls)
        } else {
            Some(Self::Kernel)
        }
    }

    /// Returns the part to which a source file belongs, or `None` if it is not part of Sluicegate.
    fn of_source(path: &str) -> Option<Self> {
        let (_, rest) = path.split_once("crates/")?;
        match rest.split('/').next()? {
            "datapath" => Some(Self::Rings),
            "engine" => Some(Self::Engine),
            "conntrack" | "fragment-table" => Some(Self::Table),
            "forwarder" | "classifier" | "packet" | "counters" | "sip-lanes" | "maglev-hash"
            | "trace-mark" | "kv-switch" => Some(Self::Pipeline),
            _ => Some(Self::User),
        }
    }
}

/// The number of instructions of a burst by part and by function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Profile {
    pub(crate) parts: BTreeMap<Part, u64>,
    pub(crate) functions: HashMap<(Part, String), u64>,
    /// Iterations of string instructions, which `parts` does not include.
    pub(crate) strings: u64,
    /// System calls by name, without the prefix `__x64_sys_`.
    pub(crate) calls: BTreeMap<String, u64>,
}

impl Profile {
    pub(crate) fn total(&self) -> u64 {
        self.parts.values().sum()
    }

    fn add(&mut self, part: Part, function: &str, count: u64) {
        *self.parts.entry(part).or_default() += count;
        *self.functions.entry((part, function.to_owned())).or_default() += count;
    }
}

/// The symbols of a VM in which one forwarder runs.
pub(crate) struct Symbols {
    /// The kernel's functions in ascending order of their addresses.
    kernel: Vec<(u64, String)>,
    programs: Vec<Program>,
    /// The executable mappings of all files.
    mapped: Vec<(std::ops::Range<u64>, String)>,
}

/// The mappings of a program with symbols.
struct Program {
    addresses: std::ops::Range<u64>,
    /// The difference between addresses in the VM and addresses in the file.
    bias: u64,
    file: PathBuf,
    /// The part and function of each known address in the file.
    places: HashMap<u64, (Part, String)>,
}

impl Symbols {
    /// Parses what `symbols` in `device.sh` writes. `files` are pairs of a path in the VM and the
    /// file on the host that has the symbols of this program.
    pub(crate) fn parse(text: &str, files: &[(&str, PathBuf)]) -> Result<Self> {
        let (kernel, maps) = text.split_once("\n\n").context("the VM wrote no symbols")?;
        let mut kernel: Vec<(u64, String)> = kernel.lines().filter_map(kernel_symbol).collect();
        kernel.sort();
        ensure!(
            kernel.len() > 10_000,
            "the symbol table of the VM has only {} kernel functions",
            kernel.len()
        );
        let mut programs = Vec::new();
        for (path, file) in files {
            let mapped: Vec<_> = maps.lines().filter(|line| line.ends_with(path)).filter_map(range).collect();
            let (Some(first), Some(last)) = (mapped.first(), mapped.last()) else { continue };
            let header = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            ensure!(header.starts_with(b"\x7fELF\x02\x01"), "{} is not a 64-bit ELF file", file.display());
            // A position-independent program starts at address 0 in its file.
            let bias = if header[16] == POSITION_INDEPENDENT { first.start } else { 0 };
            let addresses = first.start..last.end;
            programs.push(Program { addresses, bias, file: file.clone(), places: HashMap::new() });
        }
        let executable = |line: &&str| line.split(' ').nth(1).is_some_and(|rights| rights.contains('x'));
        let mapped = maps.lines().filter(executable);
        let mapped =
            mapped.filter_map(|line| Some((range(line)?, line.rsplit(['/', ' ']).next()?.to_owned())));
        Ok(Self { kernel, programs, mapped: mapped.collect() })
    }

    /// Returns the number of instructions of a burst.
    pub(crate) fn total(&self, counts: &Counts) -> u64 {
        let is_idle = |address: u64| {
            address >= KERNEL_STARTS && Part::of_kernel(self.kernel_function(address)).is_none()
        };
        counts
            .instructions()
            .plain
            .iter()
            .filter(|(address, _)| !is_idle(**address))
            .map(|(_, count)| count)
            .sum()
    }

    /// Divides the instructions of a burst by part and function.
    pub(crate) fn profile(&mut self, counts: &Counts) -> Result<Profile> {
        let all = counts.instructions();
        let mut profile = Profile { strings: all.strings.values().sum(), ..Profile::default() };
        let mut user: Vec<Vec<(u64, u64)>> = vec![Vec::new(); self.programs.len()];
        for (&address, &count) in &all.plain {
            if address >= KERNEL_STARTS {
                let name = self.kernel_function(address);
                if let Some(part) = Part::of_kernel(name) {
                    profile.add(part, name, count);
                }
            } else if let Some(n) =
                self.programs.iter().position(|program| program.addresses.contains(&address))
            {
                user[n].push((address - self.programs[n].bias, count));
            } else {
                let file = self.mapped.iter().find(|(addresses, _)| addresses.contains(&address));
                let file = file.map_or("other programs", |(_, file)| file);
                // DPDK drivers are libraries of the program.
                let part = if file.starts_with("librte_net_") { Part::Driver } else { Part::User };
                profile.add(part, file, count);
            }
        }
        for (program, counts) in self.programs.iter_mut().zip(user) {
            let is_new = |address: &u64| !program.places.contains_key(address);
            let new: Vec<u64> = counts.iter().map(|&(address, _)| address).filter(is_new).collect();
            let places = symbolize(&program.file, &new)?;
            program.places.extend(new.into_iter().zip(places));
            for (address, count) in counts {
                let (part, name) = &program.places[&address];
                profile.add(*part, name, count);
            }
        }
        for (address, name) in self.kernel.iter().filter(|(_, name)| name.starts_with(CALL)) {
            let count = counts.entries(|entry| entry == *address);
            if count > 0 {
                *profile.calls.entry(name[CALL.len()..].to_owned()).or_default() += count;
            }
        }
        Ok(profile)
    }

    fn kernel_function(&self, address: u64) -> &str {
        let n = self.kernel.partition_point(|(start, _)| *start <= address);
        n.checked_sub(1).map_or("unknown", |n| &self.kernel[n].1)
    }
}

fn kernel_symbol(line: &str) -> Option<(u64, String)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let (_, name) = (words.next()?, words.next()?);
    Some((address, words.next().map_or_else(|| name.to_owned(), |module| format!("{name} {module}"))))
}

fn range(line: &str) -> Option<std::ops::Range<u64>> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

/// Returns the part and the function of each address in a program. An instruction that was inlined
/// belongs to the function in whose source file it is written. Code of the standard library belongs
/// to its caller.
fn symbolize(file: &Path, addresses: &[u64]) -> Result<Vec<(Part, String)>> {
    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let mut symbolizer = Command::new("llvm-symbolizer")
        .args(["--inlines", "--output-style=JSON", "--obj"])
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run llvm-symbolizer")?;
    let mut input = symbolizer.stdin.take().context("llvm-symbolizer has no input")?;
    let questions: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    let writer = thread::spawn(move || input.write_all(questions.as_bytes()));
    let output = symbolizer.wait_with_output()?;
    writer.join().ok().context("cannot write to llvm-symbolizer")??;
    ensure!(output.status.success(), "llvm-symbolizer failed ({})", output.status);
    let answers: Vec<(Part, String)> = serde_json::Deserializer::from_slice(&output.stdout)
        .into_iter()
        .map(|a| Ok(place(&a?)))
        .collect::<Result<_>>()?;
    ensure!(answers.len() == addresses.len(), "llvm-symbolizer returned {} answers", answers.len());
    Ok(answers)
}

/// Returns the part and the function from the output of `llvm-symbolizer`, whose frames begin with
/// the innermost inlined function.
fn place(answer: &Value) -> (Part, String) {
    let frames = answer["Symbol"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |frame: &Value, field: &str| frame[field].as_str().unwrap_or_default().to_owned();
    for frame in frames {
        if let Some(part) = Part::of_source(&text(frame, "FileName")) {
            return (part, text(frame, "FunctionName"));
        }
    }
    (Part::User, frames.last().map(|frame| text(frame, "FunctionName")).unwrap_or_default())
}

const POSITION_INDEPENDENT: u8 = 3;
const CALL: &str = "__x64_sys_";
const IDLE: [&str; 12] = [
    "pv_native_safe_halt",
    "native_safe_halt",
    "default_idle",
    "arch_cpu_idle",
    "do_idle",
    "cpuidle_idle_call",
    "default_idle_call",
    "tick_nohz_idle_stop_tick",
    "tick_nohz_idle_enter",
    "tick_nohz_idle_exit",
    "cpu_startup_entry",
    "acpi_safe_halt",
];
const DRIVER: &[&str] = &["virtqueue_", "vring_", "virtnet", "detach_buf", "vp_notify", "vp_modern"];
const BPF: &[&str] = &[
    "bpf_prog_",
    "htab_",
    "__htab_",
    "lookup_nulls_elem_raw",
    "lookup_elem_raw",
    "array_map_",
    "trie_lookup",
    "bpf_map_",
    "bpf_xdp_adjust",
    "bpf_skb_load",
    "memcmp",
    "jhash",
];
const SYSTEM_CALLS: &[&str] = &[
    "entry_SYSCALL",
    "do_syscall",
    "syscall_",
    "x64_sys_",
    "__x64_sys_",
    "__sys_",
    "do_sys_poll",
    "do_poll",
    "sock_poll",
    "sock_sendmsg",
    "sock_recvmsg",
    "fdget",
    "fput",
    "__fget",
    "poll_",
    "__pollwait",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_belong_to_the_part_of_their_name_or_source() {
        assert_eq!(Part::of_kernel("igb_poll [igb]"), Some(Part::Driver));
        assert_eq!(Part::of_kernel("bpf_prog_6deef7357e7b4530_steer_frame [bpf]"), Some(Part::Xdp));
        assert_eq!(Part::of_kernel("htab_map_lookup_elem"), Some(Part::Xdp));
        assert_eq!(Part::of_kernel("__x64_sys_sendto"), Some(Part::SystemCalls));
        assert_eq!(Part::of_kernel("xsk_generic_xmit"), Some(Part::Kernel));
        assert_eq!(Part::of_kernel("default_idle"), None);
        assert_eq!(Part::of_source("/sluicegate/crates/conntrack/src/table.rs"), Some(Part::Table));
        assert_eq!(Part::of_source("/rustc/abc/library/core/src/num/mod.rs"), None);
    }

    #[test]
    fn instructions_are_divided_by_symbol_and_mapping() {
        let other = |n: u64| format!("{:016x} T f{n}\n", KERNEL_STARTS + n);
        let mut text: String = (0..10_000).map(other).collect();
        for (n, name) in
            [(10_000, "igb_poll\t[igb]"), (10_100, "default_idle"), (10_200, "__x64_sys_poll"), (10_300, "f")]
        {
            text += &format!("{:016x} t {name}\n", KERNEL_STARTS + n);
        }
        text += "\n1000-2000 r-xp 00001000 00:03 1  /usr/lib/librte_net_e1000.so.23\n\
                 3000-4000 r-xp 00001000 00:03 1  /usr/bin/dpdk-testpmd\n\
                 5000-6000 r-xp 00000000 00:00 0  [vdso]\n\n";
        let mut symbols = Symbols::parse(&text, &[]).expect("complete");
        let kernel = |n: u64| KERNEL_STARTS + n;
        let counts = Counts::of(&[
            (kernel(10_050), 3, &[0, 2]),
            (kernel(10_100), 1_000, &[0]),
            (kernel(10_200), 2, &[0]),
            (0x1100, 5, &[0]),
            (0x3100, 7, &[0]),
            (0x5100, 11, &[0]),
        ]);
        let profile = symbols.profile(&counts).expect("no program to symbolize");
        let parts = [(Part::Driver, 3 * 2 + 5), (Part::SystemCalls, 2), (Part::User, 7 + 11)];
        assert_eq!(profile.parts, BTreeMap::from(parts));
        assert_eq!((profile.total(), symbols.total(&counts)), (31, 31));
        assert_eq!(profile.functions[&(Part::Driver, "igb_poll [igb]".to_owned())], 6);
        assert_eq!(profile.functions[&(Part::User, "[vdso]".to_owned())], 11);
        assert_eq!(profile.calls, BTreeMap::from([("poll".to_owned(), 2)]));
    }

    #[test]
    fn inlined_library_code_belongs_to_its_caller() {
        let frame = |name: &str, file: &str| serde_json::json!({ "FunctionName": name, "FileName": file });
        let frames = [
            frame("core::num::wrapping_add", "/rustc/abc/library/core/src/num/mod.rs"),
            frame("find_services", "/sluicegate/crates/forwarder/src/pipeline.rs"),
            frame("step", "/sluicegate/crates/engine/src/engine.rs"),
        ];
        let answer = serde_json::json!({ "Symbol": frames });
        assert_eq!(place(&answer), (Part::Pipeline, "find_services".to_owned()));
        let answer = serde_json::json!({ "Symbol": [frame("memcpy", "")] });
        assert_eq!(place(&answer), (Part::User, "memcpy".to_owned()));
    }
}
