//! What clients wrote and read at the same time, and whether a read said something older than it may.
//!
//! In: the writes of each key, by one writer, one after the other; reads, by anybody. Out: how old each read was.
//! Bound: a copy is served until `lease` after its server was asked for it, by the clock of the machine. That clock is read before the
//! request comes, but not before the last request that was answered on that machine had been sent: one round trip of clients, as
//! they measured it, however slow the machine was. So of two reads, one after the other through one machine, the later is no older
//! than `lease` when the earlier one is sent.

use std::time::{Duration, Instant};

/// Of one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    /// Another one each time; `None`: the key was deleted.
    pub(crate) value: Option<u32>,
    pub(crate) sent: Instant,
    pub(crate) acknowledged: Instant,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// Its place in [`History::writes`].
    pub(crate) key: usize,
    pub(crate) value: Option<u32>,
    /// When the last request that had been answered by the same machine was sent.
    pub(crate) since: Instant,
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
}

/// How long what a read said had been overwritten, by a write whose writer knew of it; zero: it was the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Age {
    /// When the read was sent.
    pub(crate) when_sent: Duration,
    /// What it surely was when the machine looked at its clock.
    pub(crate) sure: Duration,
}

pub(crate) struct History {
    /// By key, each in its order.
    pub(crate) writes: Vec<Vec<Write>>,
}

impl History {
    /// `None`: nobody had written that yet.
    pub(crate) fn age(&self, read: &Read) -> Option<Age> {
        let writes = &self.writes[read.key];
        let begun = writes.partition_point(|write| write.sent <= read.received);
        let last = (0..begun).rev().find(|at| writes[*at].value == read.value)?;
        let overwritten = writes.get(last + 1).map(|write| write.acknowledged);
        let since = |moment: Instant| overwritten.map_or(Duration::ZERO, |over| moment - over.min(moment));
        Some(Age { when_sent: since(read.sent), sure: since(read.since) })
    }

    /// The key and the number of a write after which a read came late enough to find a copy that is served for twice its lease.
    pub(crate) fn would_tell(&self, read: &Read, lease: Duration) -> Option<(usize, usize)> {
        let writes = &self.writes[read.key];
        let over = writes.partition_point(|write| write.acknowledged + lease < read.since).checked_sub(1)?;
        (read.sent < writes[over].acknowledged + 2 * lease).then_some((read.key, over))
    }
}

/// Values of tests are all of one length.
pub(crate) fn set(key: &str, value: u32) -> Vec<u8> {
    format!("set {key} 7 0 8\r\n{value:08}\r\n").into_bytes()
}

pub(crate) fn get(key: &str) -> Vec<u8> {
    format!("get {key}\r\n").into_bytes()
}

/// The value in an answer to [`get`].
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
fn a_read_is_as_old_as_the_first_write_after_its_value() {
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
    assert_eq!(age(Some(1), 0, 4), None, "it was not written yet");
    assert_eq!(age(Some(3), 400, 401), None, "nobody wrote that");
    assert_eq!(age(Some(1), 0, 5), Some([0, 0]), "a write shows before it is acknowledged");
    assert_eq!(age(Some(1), 105, 130), Some([20, 0]));
    assert_eq!(age(Some(1), 128, 130), Some([20, 18]));
    // Deleted twice: the later one counts once it may have happened.
    assert_eq!(age(None, 289, 290), Some([80, 79]));
    assert_eq!(age(None, 294, 295), Some([0, 0]));
    let tells = |since, sent| history.would_tell(&read(None, since, sent), ms(50));
    assert_eq!([tells(69, 72), tells(71, 119), tells(71, 121)], [None, Some((0, 0)), None]);
    assert_eq!(tells(350, 370), None);
    assert_eq!(tells(362, 370), Some((0, 3)));
}
