//! Who may stay when a door is full: whoever is in the middle of asking gives way, the oldest first.
//!
//! In: connections as they are accepted, and how far each has come. Out: a [`Seat`] each, and the word that one must go.
//! A connection asks until its request is whole, is worked for until there is an answer, and is answered until the kernel has
//! taken that; then it asks again. One that asks is told to go after [`TO_ASK`], one that does not read its answer after
//! [`TO_READ`], one that is worked for never, and none while nobody waits.
//! Not here: what ends a connection that nobody waits behind (`server`, `listener`).
//! Invariant: at most `most` seats are taken, and one more connection waits for one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// The seats behind one door, which one task gives out.
#[derive(Debug)]
pub(crate) struct Room {
    most: usize,
    seats: Mutex<Seats>,
    /// A seat was left, or may be taken away now.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Seats {
    taken: BTreeMap<u64, Taken>,
    next: u64,
}

#[derive(Debug)]
struct Taken {
    phase: Phase,
    since: Instant,
    go: Arc<Notify>,
    told: bool,
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its request is not whole.
    Asking,
    /// Its request is whole, and there is no answer yet.
    Worked,
    /// Its answer is on its way.
    Answered,
}

impl Phase {
    /// How long it is left alone while others wait; `None`: to its end.
    fn patience(self) -> Option<Duration> {
        match self {
            Self::Asking => Some(TO_ASK),
            Self::Worked => None,
            Self::Answered => Some(TO_READ),
        }
    }
}

/// A connection's seat. Dropping it gives it up.
#[derive(Debug)]
pub(crate) struct Seat {
    progress: Progress,
    go: Arc<Notify>,
}

/// What a connection says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    room: Arc<Room>,
    number: u64,
}

impl Room {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, seats: Mutex::default(), changed: Notify::new() })
    }

    /// A seat, once there is one: whoever must go for it has gone then.
    pub(crate) async fn enter(self: &Arc<Self>) -> Seat {
        loop {
            let again = match self.seats().admit(self.most, Instant::now()) {
                Ok((number, go)) => {
                    return Seat { progress: Progress { room: Arc::clone(self), number }, go };
                }
                Err(again) => again,
            };
            match again {
                // Woken or not, it is looked at anew.
                Some(at) => drop(timeout_at(at, self.changed.notified()).await),
                None => self.changed.notified().await,
            }
        }
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seats {
    /// A seat's number; or when to ask again at the latest, when somebody has been told to go or nobody can be.
    fn admit(&mut self, most: usize, now: Instant) -> Result<(u64, Arc<Notify>), Option<Instant>> {
        if self.taken.len() < most {
            let (number, go) = (self.next, Arc::new(Notify::new()));
            self.next += 1;
            let taken = Taken { phase: Phase::Asking, since: now, go: Arc::clone(&go), told: false };
            self.taken.insert(number, taken);
            return Ok((number, go));
        }
        if self.taken.values().any(|seat| seat.told) {
            return Err(None);
        }
        let until = |(number, seat): (&u64, &Taken)| Some((seat.since + seat.phase.patience()?, *number));
        let Some((until, gives_way)) = self.taken.iter().filter_map(until).min() else { return Err(None) };
        if now < until {
            return Err(Some(until));
        }
        if let Some(seat) = self.taken.get_mut(&gives_way) {
            seat.told = true;
            seat.go.notify_one();
        }
        Err(None)
    }
}

impl Seat {
    /// For whoever sees how far the connection comes.
    pub(crate) fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// When another needs the seat.
    pub(crate) async fn must_go(&self) {
        self.go.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Progress { room, number } = &self.progress;
        room.seats().taken.remove(number);
        room.changed.notify_one();
    }
}

impl Progress {
    /// The request is whole.
    pub(crate) fn has_asked(&self) {
        self.turn(|_| true, Phase::Worked);
    }

    /// There is an answer.
    pub(crate) fn has_answer(&self) {
        self.turn(|_| true, Phase::Answered);
    }

    /// The kernel has taken all that was written: if that was an answer, the next request may come.
    pub(crate) fn has_sent(&self) {
        self.turn(|phase| phase == Phase::Answered, Phase::Asking);
    }

    fn turn(&self, from: impl Fn(Phase) -> bool, to: Phase) {
        let mut seats = self.room.seats();
        let Some(seat) = seats.taken.get_mut(&self.number).filter(|seat| from(seat.phase)) else { return };
        (seat.phase, seat.since) = (to, Instant::now());
        self.room.changed.notify_one();
    }
}

/// A client sends its request as soon as it is let in. With none at all, those who come together would displace each other
/// before their requests are read.
const TO_ASK: Duration = Duration::from_millis(50);
/// For an answer that the client does not read.
const TO_READ: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    /// Whom the next one in would displace.
    async fn displaced(room: &Arc<Room>, seats: &[&Seat]) -> Option<usize> {
        // Nobody gives the seat up, so it ends by the time-out; a second may pass in it.
        let _ = timeout(Duration::from_millis(1), room.enter()).await;
        seats.iter().position(|seat| room.seats().taken[&seat.progress.number].told)
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_that_asks_gives_way_then_one_that_does_not_read_and_never_one_worked_for() {
        let room = Room::new(3);
        let [a, b, c] = [room.enter().await, room.enter().await, room.enter().await];
        assert_eq!(displaced(&room, &[&a, &b, &c]).await, None, "a request may be on its way");
        a.progress().has_asked();
        advance(Duration::from_secs(1)).await;
        assert_eq!(displaced(&room, &[&a, &b, &c]).await, Some(1));
        assert!(timeout(Duration::from_secs(9), b.must_go()).await.is_ok());
        drop(b);
        let d = room.enter().await;
        a.progress().has_answer();
        a.progress().has_sent();
        // It asks anew, and later than the others.
        assert_eq!(displaced(&room, &[&a, &c, &d]).await, Some(1));
        drop(c);
        let e = room.enter().await;
        for seat in [&a, &d, &e] {
            seat.progress().has_asked();
            seat.progress().has_sent();
        }
        assert_eq!(displaced(&room, &[&a, &d, &e]).await, None, "all are worked for");
        e.progress().has_answer();
        advance(TO_READ / 2).await;
        assert_eq!(displaced(&room, &[&a, &d, &e]).await, None, "it may still read");
        advance(TO_READ / 2).await;
        assert_eq!(displaced(&room, &[&a, &d, &e]).await, Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn one_goes_for_each_who_comes_and_none_for_nobody() {
        let room = Room::new(2);
        let [a, _b] = [room.enter().await, room.enter().await];
        assert!(timeout(Duration::from_secs(99), a.must_go()).await.is_err(), "nobody waits");
        let (waiting, also) = (Arc::clone(&room), Arc::clone(&room));
        let entered = tokio::spawn(async move { waiting.enter().await });
        a.must_go().await;
        tokio::task::yield_now().await;
        assert!(!entered.is_finished(), "the seat is not free before it is left");
        assert_eq!(also.seats().taken.values().filter(|seat| seat.told).count(), 1);
        drop(a);
        let _c = entered.await.unwrap();
        assert_eq!(room.seats().taken.len(), 2);
    }
}
