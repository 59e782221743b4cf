//! `sluicegate replay`: a capture through the same pipeline, offline and without root.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use config::Config;
use control_plane::compile::{compile_file, timeouts};
use datapath::{Replayed, replay as run_capture};
use forwarder::{
    DropReason, IcmpRates, Live, NextHop, NextHopMode, Pipeline, PipelineConfig, ThreadCounters, ThreadId,
};
use packet::Mac;
use serde_json::{Map, Value, json};

use crate::out::{create_private, outln};
use crate::run::fragments;
use crate::table::print_json;
use crate::{Source, config_check};

/// What to replay.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The capture to read (pcap, Ethernet).
    #[arg(value_name = "IN.pcap")]
    input: PathBuf,
    /// The capture to write: what would have been sent.
    #[arg(value_name = "OUT.pcap")]
    output: PathBuf,
    #[command(flatten)]
    from: Source,
    /// The MAC address that stands for every next hop: offline no neighbour can be asked.
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:02")]
    next_hop: Mac,
    /// The MAC address that stands for our own.
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:01")]
    own: Mac,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Replays, and prints what became of the frames.
pub(crate) fn replay(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = config_check::load(&arguments.from.config)?;
    let snapshot = compile_file(&config, &arguments.from.machine_or_first(&config))?.snapshot;
    let mut slots = snapshot.slots().to_vec();
    for slot in &mut slots {
        slot.next_hop = Some(NextHop::plain(arguments.next_hop, arguments.own));
    }
    let snapshot = snapshot.with_slots(slots, NextHopMode::Resolve)?;
    let live = Live::new(snapshot.clone());
    let counters = Arc::new(ThreadCounters::new(snapshot.slots().len(), snapshot.services().len()));
    let pipeline = Pipeline::new(pipeline_config(&config), &live, Arc::clone(&counters), None)?;
    let input = File::open(&arguments.input).with_context(|| arguments.input.display().to_string())?;
    // Beside the output and renamed when whole: bad input loses nothing, and the input may be the output.
    let mut partial = arguments.output.clone().into_os_string();
    partial.push(".partial");
    let done = write_whole(partial.as_ref(), |output| {
        run_capture(BufReader::new(input), output, &snapshot, pipeline)
            .with_context(|| arguments.input.display().to_string())
    })?;
    std::fs::rename(&partial, &arguments.output).with_context(|| arguments.output.display().to_string())?;
    say(arguments, &done, &counters)?;
    Ok(ExitCode::SUCCESS)
}

/// One thread, as the file has it, without limits of ICMP: a capture has no rate.
fn pipeline_config(config: &Config) -> PipelineConfig {
    let io = config.io();
    PipelineConfig {
        thread: ThreadId(0),
        threads: 1,
        flows: io.flows_per_thread,
        timeouts: timeouts(config),
        max_batch: io.batch,
        icmp: IcmpRates {
            replies: u32::MAX,
            replies_to_source: u32::MAX,
            errors: u32::MAX,
            errors_of_source: u32::MAX,
        },
        limit_sources: io.limit_sources,
        fragments: fragments(io),
        held_of_a_pool: usize::MAX,
    }
}

/// Writes a file by `write`, and takes it away again if that fails.
fn write_whole<T>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut output = BufWriter::new(create_private(path)?);
    let written = write(&mut output).and_then(|done| {
        output.flush().with_context(|| path.display().to_string())?;
        Ok(done)
    });
    if written.is_err() {
        // What the error was matters more than a file left behind.
        let _ = std::fs::remove_file(path);
    }
    written
}

fn say(arguments: &Arguments, done: &Replayed, counters: &ThreadCounters) -> anyhow::Result<()> {
    let drops: Map<String, Value> = DropReason::ALL
        .iter()
        .filter(|reason| counters.drops(**reason) > 0)
        .map(|reason| (reason.name().to_owned(), counters.drops(*reason).into()))
        .collect();
    let figures = json!({
        "read": done.read, "passed": done.passed, "too_long": done.too_long, "written": done.written, "drops": drops,
    });
    if arguments.json {
        return print_json(&figures);
    }
    outln!("read      {}", done.read);
    outln!("passed    {} (not for a VIP)", done.passed);
    outln!("too long  {}", done.too_long);
    outln!("written   {}", done.written);
    for (reason, count) in &drops {
        outln!("dropped   {count} {reason}");
    }
    Ok(())
}
