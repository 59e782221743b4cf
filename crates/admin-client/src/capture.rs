//! Implements `sluicegate capture`, which writes packets from the running balancer to a pcapng file
//! for Wireshark and tshark.
//!
//! This module builds the request from the command line and copies the response to the file. Only
//! complete pcapng blocks are written, so that the file is valid even if the capture is
//! interrupted. At the end, the subcommand prints how many packets matched and how many were lost.
//! The daemon selects the packets (`control_plane::Captures`), and `admin::pcapng` parses the
//! blocks.

use std::io::{self, ErrorKind, Write};
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use admin::pcapng::Blocks;
use anyhow::Context;
use clap::Args;
use config::parse_duration;
use config::words::count;

use crate::client::{Client, Reach, escape};
use crate::failure::verdict;
use crate::out::{create_private, errln};

/// The arguments of `sluicegate capture`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Capture only packets of this VIP
    #[arg(long, value_name = "NAME")]
    vip: Option<String>,
    /// Capture only packets sent to this backend
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Capture only packets dropped for this reason, named as in the metrics; repeat the option for
    /// several reasons
    #[arg(long, value_name = "REASON", value_delimiter = ',')]
    drop: Vec<String>,
    /// Capture only packets whose flow is not in the connection table
    #[arg(long)]
    new_flows: bool,
    /// Capture one in N matching packets on each packet thread
    #[arg(long, value_name = "1/N", value_parser = share)]
    sample: Option<NonZeroU32>,
    /// Limit the captured length of each packet, 64 to 2048 bytes (default: 256)
    #[arg(long, value_name = "BYTES")]
    snaplen: Option<usize>,
    /// Stop after this number of packets
    #[arg(long, value_name = "PACKETS")]
    count: Option<NonZeroU64>,
    /// Stop after this time, 1s to 24h (default: 1h)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
    /// Write to this file, or to standard output for `-`, as in `-w - | tshark -r -`
    #[arg(short, long = "write", value_name = "FILE")]
    write: PathBuf,
    #[command(flatten)]
    reach: Reach,
}

fn share(text: &str) -> Result<NonZeroU32, String> {
    text.strip_prefix("1/")
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| "expected 1/N, such as 1/1000".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .filter(|time| time.subsec_nanos() == 0 && (1..=86_400).contains(&time.as_secs()))
        .ok_or_else(|| "expected whole seconds from 1s to 24h, such as 30s".to_owned())
}

impl Arguments {
    fn path(&self) -> String {
        let mut parts = Vec::new();
        let mut part = |name: &str, value: Option<String>| {
            parts.extend(value.map(|value| format!("{name}={value}")));
        };
        part("vip", self.vip.as_deref().map(escape));
        part("backend", self.backend.as_deref().map(escape));
        part("drop", (!self.drop.is_empty()).then(|| escape(&self.drop.join(","))));
        part("new_flows", self.new_flows.then(|| "true".to_owned()));
        part("sample", self.sample.map(|number| number.to_string()));
        part("snaplen", self.snaplen.map(|bytes| bytes.to_string()));
        part("count", self.count.map(|packets| packets.to_string()));
        part("seconds", self.duration.map(|time| time.as_secs().to_string()));
        format!("/v1/capture?{}", parts.join("&"))
    }
}

/// Captures until a limit is reached, a signal arrives, or the program that reads standard output
/// exits.
///
/// The exit code is 1 if the stream ended without statistics, in which case the number of lost
/// packets is unknown.
pub fn capture(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let client = Client::new(&arguments.reach)?;
    let name = arguments.write.display().to_string();
    let (mut blocks, mut reader_gone) = (Blocks::default(), false);
    // The file is opened only after the daemon accepts the request, so that a rejected request does
    // not truncate an existing file.
    let began = || {
        let out = open(&arguments.write)?;
        errln!("sluicegate: capturing to {name}, press Ctrl-C to stop");
        Ok(out)
    };
    let followed = client.follow(&arguments.path(), began, |out, bytes| {
        let mut written = Ok(());
        blocks.take(bytes, |whole| written = out.write_all(whole).and_then(|()| out.flush())).map_err(
            |_| anyhow::anyhow!("cannot parse the capture, the running balancer may have another version"),
        )?;
        match written {
            Ok(()) => Ok(ControlFlow::Continue(())),
            // The program that reads the pipe has exited, which normally ends the capture.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                reader_gone = true;
                Ok(ControlFlow::Break(()))
            }
            Err(error) => Err(error).with_context(|| name.clone()),
        }
    });
    say(&blocks);
    followed?;
    if !reader_gone && blocks.statistics.is_none() && blocks.packets == 0 {
        errln!("sluicegate: the capture ended before its first packet, number of lost packets unknown");
    }
    Ok(verdict(reader_gone || blocks.statistics.is_some()))
}

fn open(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout().lock()));
    }
    Ok(Box::new(create_private(path)?))
}

fn say(blocks: &Blocks) {
    match blocks.statistics {
        Some(found) => errln!(
            "sluicegate: captured {} of {} that matched, {} lost",
            count(found.delivered, "packet"),
            found.accepted,
            found.dropped
        ),
        None if blocks.packets > 0 => {
            errln!(
                "sluicegate: captured {}, number of lost packets unknown",
                count(blocks.packets, "packet")
            );
        }
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn path(line: &str) -> Result<String, String> {
        let words = std::iter::once("capture").chain(line.split(' '));
        Line::try_parse_from(words).map(|line| line.arguments.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_line_becomes_a_query() {
        for (line, query) in [
            ("-w -", ""),
            (
                "--vip w/w --backend b1 --drop ttl --drop no_vip,too_big -w x",
                "vip=w%2Fw&backend=b1&drop=ttl%2Cno_vip%2Ctoo_big",
            ),
            (
                "--new-flows --sample 1/1000 --snaplen 64 --count 5 --duration 2m -w x",
                "new_flows=true&sample=1000&snaplen=64&count=5&seconds=120",
            ),
        ] {
            assert_eq!(path(line).unwrap(), format!("/v1/capture?{query}"));
        }
        for wrong in
            ["--vip www", "--sample 1000 -w -", "--sample 1/0 -w -", "--duration 25h -w -", "--count 0 -w -"]
        {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }
}
