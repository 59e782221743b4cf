//! `sluicegate replay`: a capture through the packet thread's own loop, offline and without root.
//!
//! In: a capture, the configuration, others that replace it on the way. Out: a capture of what would have been sent; figures
//! that balance. Modules: `arrivals` (which frames), `control` (snapshots, by the capture's clock), `change` (`--reload`),
//! `stats`. Not here: the loop (`datapath::Replay`), capture files (`datapath::CaptureReader`).
//! Invariant: the clock is the capture's, and does not go back.

mod arrivals;
mod change;
mod control;
mod stats;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use datapath::{CaptureReader, CaptureWriter, Offered, Replay};
use forwarder::Now;
use packet::Mac;

use self::arrivals::{Arrival, Arrivals};
use self::change::{At, Change, change};
use self::control::{Control, Ways};
use self::stats::Stats;
use crate::run::settings;
use crate::{Source, config_check};
use admin_client::{create_private, errln};

/// What to replay. The clock is the capture's: held fragments, flows and limits time out by it. One packet thread, for which every
/// backend is up, as the file has it. Frames that the capture marks as on their way out are left out; what it kept a part of is
/// filled with zeros.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The capture to read: pcap, or pcapng as `capture` writes it. Ethernet.
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The capture to write: what would have been sent.
    #[arg(value_name = "OUT.pcap")]
    output: PathBuf,
    #[command(flatten)]
    from: Source,
    /// Change over to another configuration on the way, as a reload does; may be given again. AT is the time since the first frame
    /// (500ms, 12s), or the number of a frame, the first being 1, before which it happens.
    #[arg(long, value_name = "AT=FILE", value_parser = change)]
    reload: Vec<Change>,
    /// The MAC address that stands for every next hop, and for the router to which `next_hop = "reflect"` sends back: offline no
    /// neighbour can be asked.
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:02")]
    next_hop: Mac,
    /// The MAC address that stands for our own.
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:01")]
    own: Mac,
    /// The interface by which frames leave, and come where the capture does not name one of the machine's. Default: its first.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// The longest IP packet that the way to a backend takes. Default: `cluster.mtu.core`, else 1500.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(576..))]
    mtu: Option<u16>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Replays, and prints what became of the frames.
pub(crate) fn replay(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = config_check::load(&arguments.from.config)?;
    let machine = arguments.from.machine_or_first(&config);
    let changes = change::load(&arguments.reload)?;
    let ways = Ways {
        next_hop: arguments.next_hop,
        own: arguments.own,
        interface: arguments.interface.clone(),
        mtu: arguments.mtu,
    };
    let settings = settings(&config);
    let input = File::open(&arguments.input).with_context(|| arguments.input.display().to_string())?;
    // Beside the output and renamed when whole: bad input loses nothing, and the input may be the output.
    let mut partial = arguments.output.clone().into_os_string();
    partial.push(".partial");
    let stats = write_whole(partial.as_ref(), |output| {
        let control = Control::start(config, &machine, ways)?;
        let thread = Replay::new(control.interfaces().len().max(1), &settings, control.live())?;
        let writer = CaptureWriter::new(output)?;
        let stats = Stats::default();
        let (now, second) = (Duration::ZERO, Duration::ZERO);
        let run = Run { control, thread, writer, stats, origin: None, now, second };
        let read = || arguments.input.display().to_string();
        let reader = CaptureReader::new(BufReader::new(input)).with_context(read)?;
        run.capture(Arrivals::new(reader), changes).with_context(read)
    })?;
    std::fs::rename(&partial, &arguments.output).with_context(|| arguments.output.display().to_string())?;
    stats.print(arguments.json)?;
    Ok(ExitCode::SUCCESS)
}

/// A replay under way.
struct Run<W: Write> {
    control: Control,
    thread: Replay,
    writer: CaptureWriter<W>,
    stats: Stats,
    /// When the first frame came, since 1970.
    origin: Option<Duration>,
    /// The capture's clock, from there.
    now: Duration,
    /// When the control plane looks again.
    second: Duration,
}

impl<W: Write> Run<W> {
    fn capture(
        mut self,
        mut arrivals: Arrivals<BufReader<File>>,
        mut changes: VecDeque<change::Loaded>,
    ) -> anyhow::Result<Stats> {
        self.control.open(&mut self.thread);
        while let Some(arrival) = arrivals.next()? {
            let origin = *self.origin.get_or_insert(arrival.time);
            let time = arrival.time.saturating_sub(origin);
            self.stats.read += 1;
            while let Some(next) = changes.pop_front_if(|next| next.is_due(time, self.stats.read)) {
                if let At::Time(at) = next.at {
                    self.pass_until(at)?;
                }
                self.control.reload(next.config, &mut self.thread, self.now)?;
                self.stats.reloads += 1;
            }
            self.pass_until(time)?;
            self.take(&arrival)?;
        }
        for late in changes {
            errln!("sluicegate: the capture ends before {}: no reload", late.at);
        }
        self.stats.take_counters(self.thread.counters());
        Ok(self.stats)
    }

    fn take(&mut self, arrival: &Arrival) -> anyhow::Result<()> {
        if arrival.is_left_out {
            self.stats.left_out += 1;
            return Ok(());
        }
        self.stats.cut_short += u64::from(arrival.is_cut_short);
        let interface = self.control.interface(arrival.interface.as_deref());
        match self.thread.offer(interface, &arrival.bytes) {
            Offered::Received => self.turn()?,
            Offered::Passed => self.stats.passed += 1,
            Offered::TooLong => self.stats.too_long += 1,
        }
        Ok(())
    }

    /// Lets the time pass in turns, as a thread that sleeps has them. What an hour without a frame leaves is what any more leaves.
    fn pass_until(&mut self, time: Duration) -> anyhow::Result<()> {
        self.now = self.now.max(time.saturating_sub(LONGEST_PAUSE));
        while self.now + TURN < time {
            self.now += TURN;
            self.turn()?;
        }
        self.now = self.now.max(time);
        Ok(())
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        let now = Now::from_nanos(u64::try_from(self.now.as_nanos()).unwrap_or(u64::MAX));
        let time = self.origin.unwrap_or_default() + self.now;
        self.control.live().clock().set(time.as_secs());
        self.thread.turn(now);
        let (writer, stats, mut failed) = (&mut self.writer, &mut self.stats, None);
        self.thread.sent(|frame| match writer.write(time, frame) {
            Ok(()) => stats.written += 1,
            Err(error) => failed = Some(error),
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        self.control.take_notices(&mut self.thread, self.now)?;
        if self.now >= self.second {
            self.second = self.now + SECOND;
            self.control.look(self.now)?;
        }
        Ok(())
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

/// How long a packet thread sleeps at most.
const TURN: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);
/// A round through the connection table.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);
