//! Waiting for an event instead of for a time.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Asks `look` until it answers, or `bound` has passed. The last look is made after the bound.
pub fn eventually<T>(bound: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + bound;
    loop {
        let late = Instant::now() >= end;
        if let Some(found) = look() {
            return Some(found);
        }
        if late {
            return None;
        }
        sleep(STEP);
    }
}

const STEP: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_ends_the_wait() {
        let mut looks = 0;
        let found = eventually(Duration::from_secs(60), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, Some(3));
    }

    #[test]
    fn nothing_by_the_bound_is_none_and_it_looked_at_least_once() {
        let mut looks = 0;
        assert_eq!(
            eventually(Duration::ZERO, || {
                looks += 1;
                None::<()>
            }),
            None
        );
        assert_eq!(looks, 1);
    }
}
