//! Implements the part of the memcached demo that reads a hot key without and with a cache.
//!
//! The demo measures the response time, the number of reads that reach the server, and how long it
//! takes until a write that bypasses the balancer becomes visible through the balancer.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::{Balancer, QueryClient, eventually};

use crate::demo_kv::{Found, KvStage, NEW, OLD, PATIENCE, config, found, get, set, through};

/// Measurements of one key, without and with the cache.
#[derive(Debug, Default)]
pub(crate) struct CacheFigures {
    pub(crate) without: Reads,
    pub(crate) with: Reads,
    /// The number of reads in [`Self::with`] that the balancer counted as cache hits.
    pub(crate) hits: u64,
    pub(crate) writes: WritesAround,
}

/// Results of one client that reads a key sequentially.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    pub(crate) count: u64,
    /// The number of gets that the server counted during the reads.
    pub(crate) at_server: u64,
    pub(crate) median_us: u64,
    /// The 99th percentile of the response time.
    pub(crate) p99_us: u64,
    /// Responses that did not contain the last written value.
    pub(crate) wrong: u64,
}

/// Results of writes that go directly to the server. The balancer does not see these writes.
#[derive(Debug, Default)]
pub(crate) struct WritesAround {
    pub(crate) count: usize,
    /// The longest time in milliseconds from the response to a write until a read through the
    /// balancer returned the new value.
    pub(crate) seen_after_ms: f64,
    /// Reads that still returned the previous value. The staleness limit allows such reads.
    pub(crate) old: u64,
    /// Reads that returned the previous value after the lease and a round trip had passed.
    pub(crate) too_old: u64,
    /// Reads that returned neither the previous nor the new value.
    pub(crate) wrong: u64,
}

impl KvStage {
    /// Reads a key, first without and then with a cache. The key's server must be running.
    pub(crate) fn cached(&mut self, key: usize, server: usize) -> Result<CacheFigures> {
        eprintln!(
            "reading one key for {} s, then again with a cache (lease {} ms)",
            READING.as_secs_f64(),
            LEASE.as_millis()
        );
        let [client, _] = self.clients();
        let beside = self.beside(server);
        let answer = through(&client, &set(key, OLD))?;
        ensure!(answer == b"STORED\r\n", "memcached did not store key {key}: {}", answer.escape_ascii());
        let without = read(&client, &beside, key)?;
        let kv = format!(", cache = {{ memory = \"16MiB\", lease = \"{}ms\" }}", LEASE.as_millis());
        let config = config(&self.stage.bed, &kv);
        self.stage.balancer.reload(&self.stage.bed, &config)?;
        let is_hit = || {
            through(&client, &get(key)).ok()?;
            (hits(&self.stage.balancer).ok()? > 0).then_some(())
        };
        eventually(PATIENCE, is_hit).context("no read was answered from the cache")?;
        let before = hits(&self.stage.balancer)?;
        let with = read(&client, &beside, key)?;
        let hits = hits(&self.stage.balancer)? - before;
        Ok(CacheFigures { without, with, hits, writes: write_around(&client, &beside, key)? })
    }
}

/// Reads the key for the time [`READING`].
fn read(client: &QueryClient, server: &QueryClient, key: usize) -> Result<Reads> {
    let (before, begin) = (gets(server)?, Instant::now());
    let (mut times, mut wrong) = (Vec::new(), 0);
    while begin.elapsed() < READING {
        let sent = Instant::now();
        let answer = through(client, &get(key))?;
        times.push(sent.elapsed());
        wrong += u64::from(found(&answer, key, OLD) != Found::Last);
    }
    let at_server = gets(server)? - before;
    times.sort_unstable();
    let at = |hundredths: usize| {
        let time = times.get(times.len() * hundredths / 100).copied().unwrap_or_default();
        u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
    };
    Ok(Reads { count: times.len() as u64, at_server, median_us: at(50), p99_us: at(99), wrong })
}

/// Writes the key directly at the server, and reads it through the balancer until the new value
/// arrives.
fn write_around(client: &QueryClient, server: &QueryClient, key: usize) -> Result<WritesAround> {
    let mut writes = WritesAround { count: WRITES, ..WritesAround::default() };
    for number in 0..WRITES {
        let (old, new) = if number % 2 == 0 { (OLD, NEW) } else { (NEW, OLD) };
        // The first read simulates the reads of other clients. Because of this read, the cached
        // value has an arbitrary age at the time of the write.
        let mut before = Instant::now();
        through(client, &get(key))?;
        let answer = through(server, &set(key, new))?;
        ensure!(answer == b"STORED\r\n", "memcached did not store key {key}: {}", answer.escape_ascii());
        let written = Instant::now();
        let is_seen = || {
            let sent = Instant::now();
            let answer = through(client, &get(key)).ok()?;
            let (is_old, is_new) = (found(&answer, key, old), found(&answer, key, new));
            // When the balancer checks a lease, it may use a clock value that it read when the
            // previous request arrived. The age is therefore computed from the time of the previous
            // request.
            let too_old = is_old == Found::Last && before.saturating_duration_since(written) > LEASE;
            writes.old += u64::from(is_old == Found::Last);
            writes.too_old += u64::from(too_old);
            writes.wrong += u64::from(is_old != Found::Last && is_new != Found::Last);
            before = sent;
            (is_new == Found::Last).then(|| written.elapsed())
        };
        let seen =
            until(PATIENCE, is_seen).context("a write was not visible through the balancer in time")?;
        writes.seen_after_ms = writes.seen_after_ms.max(seen.as_secs_f64() * 1e3);
    }
    Ok(writes)
}

/// Calls `look` until it returns a value, for at most `bound`. Unlike `eventually`, this function
/// does not sleep between two calls.
fn until<T>(bound: Duration, look: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    std::iter::repeat_with(look).take_while(|_| begin.elapsed() < bound).flatten().next()
}

fn hits(balancer: &Balancer) -> Result<u64> {
    Ok(balancer.counters()?.over_threads(&["cache_hits"]))
}

/// Returns the number of gets that a server has received. The count includes `get` requests that
/// the balancer sends to fill its cache.
fn gets(server: &QueryClient) -> Result<u64> {
    let said = server.ask_whole(b"stats\r\n", PATIENCE).context("no response to stats")?;
    let said = String::from_utf8_lossy(&said);
    let count = said.lines().find_map(|line| line.strip_prefix("STAT cmd_get "));
    count
        .and_then(|count| count.parse().ok())
        .with_context(|| format!("the statistics contain no cmd_get: {said}"))
}

impl CacheFigures {
    /// Returns a description of each wrong figure.
    pub(crate) fn faults(&self) -> Vec<String> {
        let Self { without, with, hits, writes } = self;
        let mut faults = Vec::new();
        let mut expect = |is_well: bool, fault: String| faults.extend((!is_well).then_some(fault));
        let wrong = without.wrong + with.wrong + writes.wrong;
        expect(wrong == 0, format!("cache: {wrong} wrong values"));
        expect(
            without.count > 0 && without.at_server >= without.count,
            format!("without a cache {} of {} gets reached the server", without.at_server, without.count),
        );
        expect(
            2 * hits > with.count && 2 * with.at_server < with.count,
            format!("cache: {hits} hits in {} gets, {} reached the server", with.count, with.at_server),
        );
        let WritesAround { count, too_old, .. } = writes;
        expect(*count > 0 && *too_old == 0, format!("{too_old} reads after {count} writes were too old"));
        faults
    }

    pub(crate) fn words(&self) -> String {
        let Self { without, with, hits, writes } = self;
        let mut text = String::from("a hot key, one client\n");
        for (name, reads) in [("without a cache", without), ("with a cache", with)] {
            let Reads { count, at_server, median_us, p99_us, .. } = reads;
            let _ = writeln!(
                text,
                "  {name}: {count} gets in {:.1} s, median {median_us} us, p99 {p99_us} us; {at_server} reached the server",
                READING.as_secs_f64()
            );
        }
        let _ = writeln!(
            text,
            "  answered by the balancer: {hits} of {} ({:.1} %)",
            with.count,
            percent(*hits, with.count)
        );
        let WritesAround { count, seen_after_ms, old, too_old, .. } = writes;
        let _ = writeln!(
            text,
            "  {count} writes directly to the server: visible after at most {seen_after_ms:.1} ms, after {old} reads of the previous value;\n  \
             reads of the previous value after the lease ({} ms) and a round trip: {too_old}",
            LEASE.as_millis()
        );
        let _ = writeln!(text, "  wrong values: {}", without.wrong + with.wrong + writes.wrong);
        text
    }

    pub(crate) fn json(&self) -> Value {
        let reads = |reads: &Reads| {
            let Reads { count, at_server, median_us, p99_us, wrong } = reads;
            json!({
                "gets": count, "at_server": at_server, "median_us": median_us, "p99_us": p99_us, "wrong": wrong,
            })
        };
        let WritesAround { count, seen_after_ms, old, too_old, wrong } = &self.writes;
        json!({
            "lease_ms": LEASE.as_secs_f64() * 1e3, "without": reads(&self.without), "with": reads(&self.with), "hits": self.hits,
            "writes_around": {
                "count": count, "seen_after_ms": seen_after_ms, "old": old, "too_old": too_old, "wrong": wrong,
            },
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "the counts are far below 2^52")]
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

const READING: Duration = Duration::from_millis(1_500);
const LEASE: Duration = Duration::from_millis(100);
const WRITES: usize = 10;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn good() -> CacheFigures {
        let reads = |at_server| Reads { count: 1_000, at_server, median_us: 100, p99_us: 200, wrong: 0 };
        let writes = WritesAround { count: WRITES, seen_after_ms: 50.0, old: 9, ..WritesAround::default() };
        CacheFigures { without: reads(1_000), with: reads(20), hits: 990, writes }
    }

    #[test]
    fn cache_faults_are_one_per_bad_figure() {
        assert_eq!(good().faults(), [""; 0]);
        type Change = fn(&mut CacheFigures);
        let changes: [(Change, &str); 8] = [
            (|f| f.without.wrong = 1, "1 wrong"),
            (|f| f.with.wrong = 2, "2 wrong"),
            (|f| f.writes.wrong = 3, "3 wrong"),
            (|f| f.without.at_server = 999, "999 of 1000 gets reached"),
            (|f| f.hits = 500, "500 hits"),
            (|f| f.with.at_server = 500, "500 reached the server"),
            (|f| f.writes.too_old = 1, "too old"),
            (|f| f.writes.count = 0, "after 0 writes"),
        ];
        for (change, word) in changes {
            let mut figures = good();
            change(&mut figures);
            let faults = figures.faults();
            assert!(faults.len() == 1 && faults[0].contains(word), "{word}: {faults:?}");
        }
    }
}
