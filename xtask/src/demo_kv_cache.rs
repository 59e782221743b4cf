//! A hot key with and without a cache: how long its reads take, how many reach its server, and when a write past the balancer shows.
//!
//! In: the demo's bed with its servers, and one key. Out: [`CacheFigures`], what is wrong of them, and how they look.
//! Not here: the other acts (`demo_kv`, `demo_kv_replicas`).

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::{Asker, Balancer, eventually};

use crate::demo_kv::{Found, KvStage, NEW, OLD, PATIENCE, config, found, get, set, through};

/// What the cache does for one key.
#[derive(Debug, Default)]
pub(crate) struct CacheFigures {
    pub(crate) without: Reads,
    pub(crate) with: Reads,
    /// Of [`Self::with`], answered by the balancer, as it says.
    pub(crate) hits: u64,
    pub(crate) writes: WritesAround,
}

/// One client's, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    pub(crate) count: u64,
    /// All gets that the key's server counted meanwhile.
    pub(crate) at_server: u64,
    pub(crate) median_us: u64,
    /// 99 of 100 took no longer.
    pub(crate) p99_us: u64,
    /// Answers with another value than the last.
    pub(crate) wrong: u64,
}

/// Writes straight to the key's server, of which the balancer hears nothing.
#[derive(Debug, Default)]
pub(crate) struct WritesAround {
    pub(crate) count: usize,
    /// From a write's answer to the first read that says it, at most.
    pub(crate) seen_after_ms: f64,
    /// Reads that said the value of before; the bound allows it.
    pub(crate) old: u64,
    /// Of them, those that came later than the lease and a round trip.
    pub(crate) too_old: u64,
    /// Reads that said anything else.
    pub(crate) wrong: u64,
}

impl KvStage {
    /// Reads a key that a living server has, without a cache and with one.
    pub(crate) fn cached(&mut self, key: usize, server: usize) -> Result<CacheFigures> {
        eprintln!(
            "one key read for {} s, then again with a cache (lease {} ms)",
            READING.as_secs_f64(),
            LEASE.as_millis()
        );
        let [client, _] = self.clients();
        let beside = self.beside(server);
        let answer = through(&client, &set(key, OLD))?;
        ensure!(answer == b"STORED\r\n", "key {key}: {}", answer.escape_ascii());
        let without = read(&client, &beside, key)?;
        let kv = format!(", cache = {{ memory = \"16MiB\", lease = \"{}ms\" }}", LEASE.as_millis());
        let config = config(&self.stage.bed, &kv);
        self.stage.balancer.reload(&self.stage.bed, &config)?;
        let is_hit = || {
            through(&client, &get(key)).ok()?;
            (hits(&self.stage.balancer).ok()? > 0).then_some(())
        };
        eventually(PATIENCE, is_hit).context("nothing was answered from a copy")?;
        let before = hits(&self.stage.balancer)?;
        let with = read(&client, &beside, key)?;
        let hits = hits(&self.stage.balancer)? - before;
        Ok(CacheFigures { without, with, hits, writes: write_around(&client, &beside, key)? })
    }
}

/// For [`READING`].
fn read(client: &Asker, server: &Asker, key: usize) -> Result<Reads> {
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

/// Writes at the server, and reads through the balancer until that is read.
fn write_around(client: &Asker, server: &Asker, key: usize) -> Result<WritesAround> {
    let mut writes = WritesAround { count: WRITES, ..WritesAround::default() };
    for number in 0..WRITES {
        let (old, new) = if number % 2 == 0 { (OLD, NEW) } else { (NEW, OLD) };
        // As others would be read by then: the copy is in the middle of its lease somewhere.
        let mut before = Instant::now();
        through(client, &get(key))?;
        let answer = through(server, &set(key, new))?;
        ensure!(answer == b"STORED\r\n", "key {key}: {}", answer.escape_ascii());
        let written = Instant::now();
        let is_seen = || {
            let sent = Instant::now();
            let answer = through(client, &get(key)).ok()?;
            let (is_old, is_new) = (found(&answer, key, old), found(&answer, key, new));
            // The machine has looked at its clock since the request before was sent.
            let too_old = is_old == Found::Last && before.saturating_duration_since(written) > LEASE;
            writes.old += u64::from(is_old == Found::Last);
            writes.too_old += u64::from(too_old);
            writes.wrong += u64::from(is_old != Found::Last && is_new != Found::Last);
            before = sent;
            (is_new == Found::Last).then(|| written.elapsed())
        };
        let seen = until(PATIENCE, is_seen).context("a write is never seen")?;
        writes.seen_after_ms = writes.seen_after_ms.max(seen.as_secs_f64() * 1e3);
    }
    Ok(writes)
}

/// As `eventually`, without a pause between two looks.
fn until<T>(bound: Duration, look: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    std::iter::repeat_with(look).take_while(|_| begin.elapsed() < bound).flatten().next()
}

fn hits(balancer: &Balancer) -> Result<u64> {
    Ok(balancer.counters()?.over_threads(&["cache_hits"]))
}

/// That a server has had; those of a balancer's own are among them.
fn gets(server: &Asker) -> Result<u64> {
    let said = server.ask_whole(b"stats\r\n", PATIENCE).context("no answer to stats")?;
    let said = String::from_utf8_lossy(&said);
    let count = said.lines().find_map(|line| line.strip_prefix("STAT cmd_get "));
    count.and_then(|count| count.parse().ok()).with_context(|| format!("no cmd_get in {said}"))
}

impl CacheFigures {
    /// What is wrong, in words.
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
            format!("cache: {hits} hits in {} gets, {} at the server", with.count, with.at_server),
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
                "  {name}: {count} gets in {:.1} s, median {median_us} us, p99 {p99_us} us; its server had {at_server}",
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
            "  {count} writes straight to the server: seen after {seen_after_ms:.1} ms at most, {old} reads of the old value before;\n  \
             later than the lease ({} ms) and a round trip: {too_old}",
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

#[expect(clippy::cast_precision_loss, reason = "counts of seconds")]
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
    fn good_figures_have_no_fault_and_each_bad_one_has_its_own() {
        assert_eq!(good().faults(), [""; 0]);
        type Change = fn(&mut CacheFigures);
        let changes: [(Change, &str); 8] = [
            (|f| f.without.wrong = 1, "1 wrong"),
            (|f| f.with.wrong = 2, "2 wrong"),
            (|f| f.writes.wrong = 3, "3 wrong"),
            (|f| f.without.at_server = 999, "999 of 1000 gets reached"),
            (|f| f.hits = 500, "500 hits"),
            (|f| f.with.at_server = 500, "500 at the server"),
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
