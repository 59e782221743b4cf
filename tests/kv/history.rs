//! Each key has one writer, which waits for each reply before the next write. All clients can read
//! the key. A balancer serves a cached value until `lease` has passed on its own clock since it
//! fetched the value. The balancer reads its clock before it receives a request, but after the
//! client sent the previous request that this balancer answered. The measured age is therefore
//! accurate to one round trip of the clients. If two reads follow each other through one balancer,
//! the later read must return a value that was at most `lease` old when the earlier read was sent.

use std::time::{Duration, Instant};

/// One write of a key by the only writer of this key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    /// The unique value that was written, or `None` for a delete.
    pub(crate) value: Option<u32>,
    pub(crate) sent: Instant,
    pub(crate) acknowledged: Instant,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// The index of the key in [`History::writes`].
    pub(crate) key: usize,
    pub(crate) value: Option<u32>,
    /// The time when the client sent the previous request that the same balancer answered.
    pub(crate) since: Instant,
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
}

/// The time between an acknowledged write and a read that still returned the overwritten value. The
/// time is zero if the value was current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Age {
    /// The age when the client sent the read.
    pub(crate) when_sent: Duration,
    /// The minimum age when the balancer read its clock.
    pub(crate) sure: Duration,
}

pub(crate) struct History {
    /// The writes of each key, in the order in which they were sent.
    pub(crate) writes: Vec<Vec<Write>>,
}

impl History {
    /// Returns the age of the value in a read, or `None` if that value was not written before the
    /// read ended.
    pub(crate) fn age(&self, read: &Read) -> Option<Age> {
        let writes = &self.writes[read.key];
        let begun = writes.partition_point(|write| write.sent <= read.received);
        let last = (0..begun).rev().find(|at| writes[*at].value == read.value)?;
        let overwritten = writes.get(last + 1).map(|write| write.acknowledged);
        let since = |moment: Instant| overwritten.map_or(Duration::ZERO, |over| moment - over.min(moment));
        Some(Age { when_sent: since(read.sent), sure: since(read.since) })
    }

    /// Checks whether a read is conclusive: a balancer that served cached values for twice the
    /// lease would have returned a value that was overwritten more than one lease earlier. Returns
    /// the key and the index of the overwriting write.
    pub(crate) fn would_tell(&self, read: &Read, lease: Duration) -> Option<(usize, usize)> {
        let writes = &self.writes[read.key];
        let over = writes.partition_point(|write| write.acknowledged + lease < read.since).checked_sub(1)?;
        (read.sent < writes[over].acknowledged + 2 * lease).then_some((read.key, over))
    }
}

/// Returns a `set` command. All values have the same length.
pub(crate) fn set(key: &str, value: u32) -> Vec<u8> {
    format!("set {key} 7 0 8\r\n{value:08}\r\n").into_bytes()
}

pub(crate) fn get(key: &str) -> Vec<u8> {
    format!("get {key}\r\n").into_bytes()
}

/// Returns the value in a response to [`get`], or `None` if the key does not exist.
pub(crate) fn value(key: &str, said: &[u8]) -> Option<u32> {
    if said == b"END\r\n" {
        return None;
    }
    let text = std::str::from_utf8(said).unwrap_or_default();
    let digits =
        text.strip_prefix(&format!("VALUE {key} 7 8\r\n")).and_then(|rest| rest.strip_suffix("\r\nEND\r\n"));
    let value = digits.filter(|digits| digits.len() == 8).and_then(|digits| digits.parse().ok());
    Some(value.unwrap_or_else(|| panic!("{key}: {}", said.escape_ascii())))
}

#[test]
fn age_of_read_is_that_of_the_next_write() {
    let (start, ms) = (Instant::now(), Duration::from_millis);
    let write = |value, sent, acknowledged| Write {
        value,
        sent: start + ms(sent),
        acknowledged: start + ms(acknowledged),
    };
    let writes =
        vec![write(Some(1), 10, 20), write(None, 100, 110), write(Some(2), 200, 210), write(None, 300, 310)];
    let history = History { writes: vec![writes] };
    let read = |value, since, sent| Read {
        key: 0,
        value,
        since: start + ms(since),
        sent: start + ms(sent),
        received: start + ms(sent + 5),
    };
    let age = |value, since, sent| {
        history.age(&read(value, since, sent)).map(|age| [age.when_sent, age.sure].map(|age| age.as_millis()))
    };
    assert_eq!(age(Some(1), 0, 4), None, "the value was not written yet");
    assert_eq!(age(Some(3), 400, 401), None, "the value was never written");
    assert_eq!(age(Some(1), 0, 5), Some([0, 0]), "an unacknowledged write may be read");
    assert_eq!(age(Some(1), 105, 130), Some([20, 0]));
    assert_eq!(age(Some(1), 128, 130), Some([20, 18]));
    // After two deletes, the age is measured from the earliest time at which the later delete may
    // have happened.
    assert_eq!(age(None, 289, 290), Some([80, 79]));
    assert_eq!(age(None, 294, 295), Some([0, 0]));
    let tells = |since, sent| history.would_tell(&read(None, since, sent), ms(50));
    assert_eq!([tells(69, 72), tells(71, 119), tells(71, 121)], [None, Some((0, 0)), None]);
    assert_eq!(tells(350, 370), None);
    assert_eq!(tells(362, 370), Some((0, 3)));
}
