//! Which lines of the log are written: by the file's level, or for a while by an operator's.
//!
//! In: the level of the configuration in force, orders, the time. Out: the level that holds, and whether an order is another than before.
//! Not here: the writing (the binary's); the answer (`rows`).
//! Invariant: a configuration ends no order, and each order has an end.

use std::time::Duration;

use config::LogLevel;

/// The file's level, and what an operator orders instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOrders {
    file: LogLevel,
    order: Option<LogOrder>,
}

/// An operator's order. Times are from the start of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOrder {
    /// The level that is to hold.
    pub level: LogLevel,
    /// When it was given.
    pub at: Duration,
    /// When it ends by itself.
    pub until: Duration,
    /// Who gave it.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
}

impl LogOrders {
    /// None yet: the file's level holds.
    #[must_use]
    pub fn new(file: LogLevel) -> Self {
        Self { file, order: None }
    }

    /// Another configuration is in force.
    pub fn follow(&mut self, file: LogLevel) {
        self.file = file;
    }

    /// The level that holds.
    #[must_use]
    pub fn level(&self) -> LogLevel {
        self.order.as_ref().map_or(self.file, |order| order.level)
    }

    /// That of the file.
    #[must_use]
    pub fn file(&self) -> LogLevel {
        self.file
    }

    /// The order in force.
    #[must_use]
    pub fn order(&self) -> Option<&LogOrder> {
        self.order.as_ref()
    }

    /// Takes an order in the place of the one in force; `None` takes that back. Whether anything is another than before: its level,
    /// its end, its reason.
    pub fn give(&mut self, order: Option<LogOrder>) -> bool {
        let says = |order: &LogOrder| (order.level, order.until, order.reason.clone());
        let changed = self.order.as_ref().map(says) != order.as_ref().map(says);
        if changed {
            self.order = order;
        }
        changed
    }

    /// Takes back an order that has lasted as long as it should, and gives it.
    pub fn expire(&mut self, now: Duration) -> Option<LogOrder> {
        self.order.take_if(|order| order.until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn second(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    fn order(level: LogLevel, at: u64, until: u64) -> LogOrder {
        let (at, until) = (second(at), second(until));
        LogOrder { level, at, until, by: "uid 0".to_owned(), reason: None }
    }

    #[test]
    fn a_reload_changes_the_files_level_and_ends_no_order() {
        let mut log = LogOrders::new(LogLevel::Info);
        log.follow(LogLevel::Warn);
        assert_eq!(log.level(), LogLevel::Warn);
        assert!(log.give(Some(order(LogLevel::Debug, 0, 60))));
        for file in [LogLevel::Error, LogLevel::Debug, LogLevel::Trace] {
            log.follow(file);
            assert_eq!((log.level(), log.file()), (LogLevel::Debug, file));
        }
        assert!(log.give(None));
        assert_eq!((log.level(), log.order()), (LogLevel::Trace, None));
    }

    #[test]
    fn an_order_ends_by_itself_once_and_not_before_its_time() {
        let mut log = LogOrders::new(LogLevel::Info);
        let debug = order(LogLevel::Debug, 0, 60);
        log.give(Some(debug.clone()));
        assert_eq!(log.expire(second(60) - Duration::from_nanos(1)), None);
        assert_eq!(log.level(), LogLevel::Debug);
        assert_eq!(log.expire(second(60)), Some(debug));
        assert_eq!((log.level(), log.expire(second(60))), (LogLevel::Info, None));
        assert!(!log.give(None), "it is over");
    }

    #[test]
    fn the_last_order_wins_and_its_end_holds() {
        let mut log = LogOrders::new(LogLevel::Info);
        log.give(Some(order(LogLevel::Trace, 0, 10)));
        assert!(log.give(Some(order(LogLevel::Error, 5, 60))));
        assert_eq!((log.level(), log.expire(second(10))), (LogLevel::Error, None));
        assert!(log.expire(second(60)).is_some());
    }

    #[test]
    fn what_changes_nothing_says_so_and_stays_as_it_was() {
        let mut log = LogOrders::new(LogLevel::Info);
        assert!(!log.give(None), "there was none");
        let debug = order(LogLevel::Debug, 0, 60);
        assert!(log.give(Some(debug.clone())));
        assert!(!log.give(Some(LogOrder { at: second(1), by: "uid 1".to_owned(), ..debug.clone() })));
        assert_eq!(log.order(), Some(&debug), "who gave it first stays beside it");
        for other in [
            LogOrder { level: LogLevel::Info, ..debug.clone() },
            LogOrder { until: second(61), ..debug.clone() },
            LogOrder { reason: Some("b2 flaps".to_owned()), ..debug.clone() },
        ] {
            assert!(log.give(Some(other.clone())), "{other:?}");
            assert!(log.give(Some(debug.clone())));
        }
        assert!(log.give(None) && !log.give(None));
    }
}
