//! Computes the digest of the configuration that a cluster's machines share, which is SHA-256 over
//! canonical JSON.
//!
//! The sections `[machine]`, `[bgp]`, `[io]`, `[log]` and `[admin]` are not included, because
//! machines may differ in them. `config` defines how values are serialized.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use serde::Serialize;
use sha2::{Digest, Sha256};

use config::{Check, Cluster, Config, Encapsulation, Pool, PrefixGroup, Remote, Trace, Vip};

/// The parts of a configuration that all machines must share.
#[derive(Serialize)]
struct Agreed<'a> {
    cluster: &'a Cluster,
    peer_checks: BTreeSet<&'a str>,
    /// The checks that at least one backend uses, by name.
    check: BTreeMap<&'a str, &'a Check>,
    encapsulation: BTreeMap<&'a str, &'a Encapsulation>,
    pool: &'a [Arc<Pool>],
    prefix_group: &'a [Arc<PrefixGroup>],
    remote: &'a [Arc<Remote>],
    vip: &'a [Vip],
    trace: Option<&'a Trace>,
}

impl<'a> Agreed<'a> {
    fn of(config: &'a Config) -> Self {
        let mut check: BTreeMap<&str, &Check> = named(config.peer_checks()).collect();
        let mut encapsulation = BTreeMap::new();
        // Most members of a pool share checks and encapsulation. Comparing pointers avoids
        // inserting the same names again.
        let (mut checks, mut ways): (&[Arc<Check>], Option<&Encapsulation>) = (&[], None);
        for member in config.members() {
            if !std::ptr::eq(&*member.checks, checks) {
                checks = &member.checks;
                check.extend(named(checks));
            }
            if !ways.is_some_and(|way| std::ptr::eq(way, &*member.encapsulation)) {
                ways = Some(&member.encapsulation);
                encapsulation.insert(&*member.encapsulation.name, &*member.encapsulation);
            }
        }
        Self {
            cluster: config.cluster(),
            peer_checks: config.peer_checks().iter().map(|check| &*check.name).collect(),
            check,
            encapsulation,
            pool: config.pools(),
            prefix_group: config.groups(),
            remote: config.remotes(),
            vip: config.vips(),
            trace: config.trace(),
        }
    }
}

fn named(checks: &[Arc<Check>]) -> impl Iterator<Item = (&str, &Check)> {
    checks.iter().map(|check| (&*check.name, &**check))
}

pub(super) fn digest(config: &Config) -> [u8; 32] {
    let sum = Sum(Sha256::new_with_prefix(b"sluicegate agreed configuration, version 2\0"));
    let mut sum = BufWriter::with_capacity(CHUNK, sum);
    // Neither serialization nor writing can fail. Map keys are strings, and the hash accepts all
    // bytes.
    let written = serde_json::to_writer(&mut sum, &Agreed::of(config)).is_ok() && sum.flush().is_ok();
    debug_assert!(written, "a configuration must serialize");
    sum.into_parts().0.0.finalize().into()
}

/// A writer that hashes all bytes written to it.
struct Sum(Sha256);

impl Write for Sum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const CHUNK: usize = 4_096;
