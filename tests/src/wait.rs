//! Waits for a condition with a time limit.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Calls `look` until it returns a value or `bound` has passed. Calls `look` one last time after
/// `bound`.
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
    fn timeout_returns_none_after_one_call() {
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
