//! The level of the log, and orders of another: what the API answers.

use std::time::Duration;

use admin::view::{self, LogChange, LogOrderRow, LogView};

use crate::log_orders::{LogOrder, LogOrders};

impl LogOrders {
    /// Takes an order, or takes it back (`None`), as [`LogOrders::give`]; what has changed. `now` counts from the start of the process.
    pub fn answer(&mut self, order: Option<admin::LogOrder>, now: Duration) -> LogChange {
        let (level_before, is_order) = (level_shown(self.level()), order.is_some());
        let changed = self.give(order.map(|order| LogOrder::of(order, now)));
        let log = self.view(now);
        let mut notes = Vec::new();
        if !changed {
            let why = if is_order { "it is ordered already" } else { "no such order is in force" };
            notes.push(format!("nothing changed: {why}"));
        }
        if is_order && log.level == log.file_level {
            notes.push(format!("the file says {} too: a reload will not change it meanwhile", log.level));
        }
        LogChange { changed, level_before, log, notes }
    }

    /// What holds, and why.
    #[must_use]
    pub fn view(&self, now: Duration) -> LogView {
        let [level, file_level] = [self.level(), self.file()].map(level_shown);
        LogView { level, file_level, order: self.row(now) }
    }

    /// The order in force.
    #[must_use]
    pub fn row(&self, now: Duration) -> Option<LogOrderRow> {
        self.order().map(|order| LogOrderRow {
            level: level_shown(order.level),
            since_seconds: now.saturating_sub(order.at).as_secs_f64(),
            by: order.by.clone(),
            reason: order.reason.clone(),
            ends_in_seconds: order.until.saturating_sub(now).as_secs_f64(),
        })
    }
}

impl LogOrder {
    fn of(order: admin::LogOrder, now: Duration) -> Self {
        let admin::LogOrder { level, lasts, by, reason } = order;
        Self { level: meant(level), at: now, until: now + lasts, by, reason }
    }
}

const fn meant(level: view::LogLevel) -> config::LogLevel {
    match level {
        view::LogLevel::Error => config::LogLevel::Error,
        view::LogLevel::Warn => config::LogLevel::Warn,
        view::LogLevel::Info => config::LogLevel::Info,
        view::LogLevel::Debug => config::LogLevel::Debug,
        view::LogLevel::Trace => config::LogLevel::Trace,
    }
}

/// A level as the API has it.
const fn level_shown(level: config::LogLevel) -> view::LogLevel {
    match level {
        config::LogLevel::Error => view::LogLevel::Error,
        config::LogLevel::Warn => view::LogLevel::Warn,
        config::LogLevel::Info => view::LogLevel::Info,
        config::LogLevel::Debug => view::LogLevel::Debug,
        config::LogLevel::Trace => view::LogLevel::Trace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(level: view::LogLevel, lasts: u64) -> Option<admin::LogOrder> {
        let (lasts, by) = (Duration::from_secs(lasts), "uid 0".to_owned());
        Some(admin::LogOrder { level, lasts, by, reason: Some("b2 flaps".to_owned()) })
    }

    #[test]
    fn every_level_goes_there_and_back() {
        for level in view::LogLevel::ALL {
            assert_eq!(level_shown(meant(level)), level);
        }
    }

    #[test]
    fn an_answer_says_what_was_and_what_holds_and_until_when() {
        let mut log = LogOrders::new(config::LogLevel::Info);
        let change = log.answer(order(view::LogLevel::Debug, 60), Duration::from_secs(5));
        let levels = (change.level_before, change.log.level, change.log.file_level);
        assert_eq!(levels, (view::LogLevel::Info, view::LogLevel::Debug, view::LogLevel::Info));
        assert!(change.changed && change.notes.is_empty(), "{change:?}");
        let row = log.row(Duration::from_secs(15)).unwrap();
        let times = (row.since_seconds, row.ends_in_seconds);
        assert_eq!((times, row.by, row.reason), ((10.0, 50.0), "uid 0".into(), Some("b2 flaps".into())));
        let again = log.answer(order(view::LogLevel::Debug, 60), Duration::from_secs(5));
        assert_eq!((again.changed, &*again.notes[0]), (false, "nothing changed: it is ordered already"));
    }

    #[test]
    fn what_has_no_effect_is_said() {
        let mut log = LogOrders::new(config::LogLevel::Info);
        let change = log.answer(None, Duration::ZERO);
        assert_eq!(
            (change.changed, &*change.notes[0]),
            (false, "nothing changed: no such order is in force")
        );
        let change = log.answer(order(view::LogLevel::Info, 60), Duration::ZERO);
        assert!(change.changed && change.notes[0].starts_with("the file says info too"), "{change:?}");
        assert!(log.answer(None, Duration::ZERO).changed);
    }
}
