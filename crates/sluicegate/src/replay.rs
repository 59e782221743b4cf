//! Implements `sluicegate replay`, which processes the packets of a capture file with the main loop
//! of a packet thread, offline and without root.
//!
//! The packets that would have been sent are written to a second capture file, and the counters are
//! printed. The submodule `arrivals` reads the frames, `control` builds the snapshots, `change`
//! implements `--reload`, and `stats` prints the counters. The crate `datapath` implements the main
//! loop and the formats of capture files. The clock of the replay follows the timestamps of the
//! capture, but never goes backward.

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

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Read this capture file, pcap or pcapng with Ethernet frames
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Write the packets that would have been sent to this pcap file
    #[arg(value_name = "OUT.pcap")]
    output: PathBuf,
    #[command(flatten)]
    from: Source,
    /// Switch to configuration FILE at AT, like a reload; AT is a time since the first frame
    /// (500ms, 12s) or the number of a frame, counted from 1; repeat the option for several
    /// switches
    #[arg(long, value_name = "AT=FILE", value_parser = change)]
    reload: Vec<Change>,
    /// Use this MAC address as the next hop of all packets, and as the router for `next_hop =
    /// "reflect"`, because neighbors cannot be resolved offline
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:02")]
    next_hop: Mac,
    /// Use this MAC address as the address of the load balancer
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:01")]
    own: Mac,
    /// Send all frames on this interface, and treat frames without a known interface as received on
    /// it (default: the first interface of the machine)
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Assume this path MTU to all backends, 576 to 65535 bytes (default: `cluster.mtu.core`, or
    /// 1500 without it)
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(576..))]
    mtu: Option<u16>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Replays the capture and prints the counters.
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
    let settings = settings(&config, &[]);
    let input = File::open(&arguments.input).with_context(|| arguments.input.display().to_string())?;
    // The output is written to a temporary file, which is renamed at the end. Invalid input
    // therefore leaves an existing output file unchanged, and the input file may also be the output
    // file.
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

/// The state of a running replay.
struct Run<W: Write> {
    control: Control,
    thread: Replay,
    writer: CaptureWriter<W>,
    stats: Stats,
    /// The timestamp of the first frame, as time since 1970.
    origin: Option<Duration>,
    /// The current time of the replay, relative to `origin`.
    now: Duration,
    /// The time at which the control plane runs next.
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
            errln!("sluicegate: no reload at {}, because the capture ends earlier", late.at);
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

    /// Advances the clock to `time` in short steps, like a packet thread that sleeps between
    /// packets. Shortens pauses of more than an hour to an hour, after which all table entries have
    /// expired.
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

/// Calls `write` with a new file, and removes the file if `write` fails.
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
        // This error is ignored, because the error of `write` is returned.
        let _ = std::fs::remove_file(path);
    }
    written
}

/// The longest time that a packet thread sleeps.
const TURN: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);
/// The duration of one pass through the connection table, after which all expired flows have been
/// removed.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);
