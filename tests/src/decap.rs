//! Runs `sluicegate decap` on backends. The process prints its counters as JSON every second and
//! when it ends.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::balancer::says_ready;
use crate::{Bed, Process};

/// A running `decap` process. Dropping the handle stops the process.
#[derive(Debug)]
pub struct Decap {
    /// The `decap` process.
    pub process: Process,
}

impl Decap {
    /// Starts `decap` on backend `index` (0 is `b1`), and waits until its BPF program is attached.
    /// The program accepts packets to the VIPs of the testbed from the source prefixes `from`.
    ///
    /// # Errors
    /// Returns an error if the binary is missing, or if the process ends or is not ready in time.
    /// The message contains the log.
    pub fn start(bed: &Bed, index: usize, from: &[String]) -> Result<Self> {
        let backend = &bed.backends[index];
        let mut args = vec!["decap", "--interface", backend.device, "--json", "--interval", "1s"];
        args.extend(from.iter().flat_map(|prefix| ["--from", prefix]));
        let vips: Vec<String> = bed.spec.vips.iter().map(ToString::to_string).collect();
        args.extend(vips.iter().flat_map(|vip| ["--vip", vip]));
        let name = format!("decap on {}", backend.name);
        let mut process = Process::start(&backend.ns, &name, bed.program()?, &args)?;
        process.wait_for_line(BOUND, says_ready)?;
        Ok(Self { process })
    }

    /// Starts `decap` on all backends. Each process accepts packets from all balancers.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::start`].
    pub fn start_all(bed: &Bed) -> Result<Vec<Self>> {
        let prefix = |ip: IpAddr| format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 });
        let from: Vec<String> =
            bed.balancers.iter().flat_map(|host| [prefix(host.v4.into()), prefix(host.v6.into())]).collect();
        (0..bed.backends.len()).map(|index| Self::start(bed, index, &from)).collect()
    }

    /// Stops the process and returns its last counters.
    ///
    /// # Errors
    /// Returns an error if the process does not end in time or has not printed counters.
    pub fn stop(mut self) -> Result<Value> {
        let status = self.process.stop(BOUND)?;
        ensure!(status.success(), "decap ended with {status}:\n{}", self.process.tail());
        self.counts().context("decap printed no counts")
    }

    /// Returns the counters that the process printed last.
    #[must_use]
    pub fn counts(&self) -> Option<Value> {
        let reported = |text: &str| {
            serde_json::from_str::<Value>(text)
                .ok()
                .filter(|v| v["schema"] == 1 && v.get("taken_off").is_some())
        };
        self.process.lines().iter().rev().find_map(|line| reported(&line.text))
    }

    /// Returns the total number of decapsulated packets. This function accepts both forms of the
    /// counter: `{"taken_off": {"gre": n, …}}` and `{"taken_off": n}`.
    #[must_use]
    pub fn taken_off(counts: &Value) -> u64 {
        match counts.get("taken_off") {
            Some(Value::Object(kinds)) => kinds.values().filter_map(Value::as_u64).sum(),
            Some(value) => value.as_u64().unwrap_or_default(),
            None => 0,
        }
    }
}

const BOUND: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_summed() {
        assert_eq!(Decap::taken_off(&serde_json::json!({"taken_off": {"gre": 2, "gue": 3}, "passed": 9})), 5);
        assert_eq!(Decap::taken_off(&serde_json::json!({"taken_off": 4})), 4);
    }
}
