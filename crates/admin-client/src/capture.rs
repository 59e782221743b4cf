//! `sluicegate capture`: packets of the running balancer, into a file that Wireshark and tshark read.
//!
//! In: which packets. Out: a pcapng file, whole however the capture ends; how many packets were lost.
//! Not here: what is captured (`control_plane::Captures`), the blocks (`admin::pcapng`).

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

/// Which packets, and where to. All conditions must hold. A packet is written twice: on the interface `before` as it came, on `after`
/// as it leaves, each with the verdict as its comment.
///
/// Not captured: pieces of a packet that had to be cut, answers to pieces, what a full ring or mailbox ends after the
/// verdict (`tx_full`, `mailbox_full`, `no_frame`). A held piece is captured when it comes and when it goes.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Packets of this VIP.
    #[arg(long, value_name = "NAME")]
    vip: Option<String>,
    /// Packets for this backend.
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Packets dropped for this reason; may be given again. The names are those of the metrics.
    #[arg(long, value_name = "REASON", value_delimiter = ',')]
    drop: Vec<String>,
    /// Packets whose flow the connection table did not know.
    #[arg(long)]
    new_flows: bool,
    /// One matching packet in N, on each packet thread.
    #[arg(long, value_name = "1/N", value_parser = share)]
    sample: Option<NonZeroU32>,
    /// Bytes of each packet, 64 to 2048. Default: 256.
    #[arg(long, value_name = "BYTES")]
    snaplen: Option<usize>,
    /// End after so many packets.
    #[arg(long, value_name = "PACKETS")]
    count: Option<NonZeroU64>,
    /// End after this time, at most 24h. Default: 1h.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
    /// The file; `-` is standard output, as for `… -w - | tshark -r -`.
    #[arg(short, long = "write", value_name = "FILE")]
    write: PathBuf,
    #[command(flatten)]
    reach: Reach,
}

fn share(text: &str) -> Result<NonZeroU32, String> {
    text.strip_prefix("1/")
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| "wanted 1/N, such as 1/1000".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .filter(|time| time.subsec_nanos() == 0 && (1..=86_400).contains(&time.as_secs()))
        .ok_or_else(|| "a duration from 1s to 24h in whole seconds, such as \"30s\"".to_owned())
}

impl Arguments {
    /// As the API takes it.
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

/// Captures until a bound is reached, a signal comes or the reader of standard output has gone. 1 when it was broken off, so
/// that it is not known what was lost.
pub fn capture(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let client = Client::new(&arguments.reach)?;
    let name = arguments.write.display().to_string();
    let (mut blocks, mut reader_gone) = (Blocks::default(), false);
    // Only now: an order that is refused leaves a file as it is.
    let began = || {
        let out = open(&arguments.write)?;
        errln!("sluicegate: capturing to {name}; Ctrl-C ends it");
        Ok(out)
    };
    let followed = client.follow(&arguments.path(), began, |out, bytes| {
        let mut written = Ok(());
        blocks
            .take(bytes, |whole| written = out.write_all(whole).and_then(|()| out.flush()))
            .map_err(|_| anyhow::anyhow!("an answer of another version: not a capture"))?;
        match written {
            Ok(()) => Ok(ControlFlow::Continue(())),
            // The pipe is closed: its reader has seen enough.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                reader_gone = true;
                Ok(ControlFlow::Break(()))
            }
            Err(error) => Err(error).with_context(|| name.clone()),
        }
    });
    say(&blocks);
    followed?;
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
            "sluicegate: {} of {} that matched, {} lost",
            count(found.delivered, "packet"),
            found.accepted,
            found.dropped
        ),
        None if blocks.packets > 0 => {
            errln!("sluicegate: {}; how many were lost is not known", count(blocks.packets, "packet"));
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
