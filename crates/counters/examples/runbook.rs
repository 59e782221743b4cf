//! Checks that an on-call runbook mentions all drop reasons and all packet thread metrics. Run it
//! with `runbook < oncall.md`. The program prints each name that is missing from the runbook.

use std::collections::BTreeSet;
use std::io::{Read, stdin};
use std::process::ExitCode;

use counters::{DRIVER_DROPS, PIPELINE_DROPS, THREAD};

fn main() -> ExitCode {
    let mut text = String::new();
    if let Err(error) = stdin().read_to_string(&mut text) {
        eprintln!("cannot read standard input: {error}");
        return ExitCode::from(2);
    }
    let named: BTreeSet<&str> = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let reasons =
        PIPELINE_DROPS.iter().chain(DRIVER_DROPS).map(|reason| (*reason, "A reason to drop a packet."));
    let metrics = THREAD.iter().map(|spec| (spec.metric.name, spec.metric.help));
    let missing: Vec<_> = reasons.chain(metrics).filter(|(name, _)| !named.contains(name)).collect();
    for (name, what) in &missing {
        println!("{name}: {what}");
    }
    ExitCode::from(u8::from(!missing.is_empty()))
}
