//! The settings of the live screen that the operator changes with keys: the order of rows, the
//! filter, the shown table and the help page.

use std::cell::Cell;
use std::cmp::Ordering;

use clap::ValueEnum;
use config::natural;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::rates::Row;

/// The column by which VIPs and backends are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Sort {
    #[default]
    Packets,
    Bits,
    NewFlows,
    Name,
}

impl Sort {
    fn next(self) -> Self {
        match self {
            Self::Packets => Self::Bits,
            Self::Bits => Self::NewFlows,
            Self::NewFlows => Self::Name,
            Self::Name => Self::Packets,
        }
    }

    /// Returns the heading of the column.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Packets => "packets/s",
            Self::Bits => "bits/s",
            Self::NewFlows => "new flows/s",
            Self::Name => "name",
        }
    }

    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let rate = |row: &Row| match self {
            Self::Packets => row.traffic.packets_per_second,
            Self::Bits => row.traffic.bits_per_second,
            Self::NewFlows => row.traffic.new_flows_per_second,
            Self::Name => 0.0,
        };
        rate(b).total_cmp(&rate(a)).then_with(|| natural(&a.name, &b.name))
    }
}

/// The table that fills the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Shows {
    #[default]
    All,
    Vips,
    Backends,
    Threads,
    Drops,
}

impl Shows {
    const ALL: [Self; 5] = [Self::All, Self::Vips, Self::Backends, Self::Threads, Self::Drops];

    fn step(self, by: usize) -> Self {
        let place = Self::ALL.iter().position(|one| *one == self).unwrap_or_default();
        Self::ALL[(place + by) % Self::ALL.len()]
    }
}

/// The settings of the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Controls {
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    /// The text that the names of shown rows contain, in lower case.
    pub(super) filter: String,
    /// `true` while the operator enters the filter.
    pub(super) is_typing: bool,
    pub(super) help: bool,
    pub(super) shows: Shows,
    /// The number of rows above the first shown row, if one table fills the screen. A number beyond
    /// the end of the table is reduced when the table is drawn.
    pub(super) skipped: Cell<usize>,
}

impl Controls {
    /// Applies a key. Returns `true` if the operator quits.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return true;
        }
        if self.is_typing {
            self.enter(key.code);
            return false;
        }
        match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => return true,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Tab => self.show(self.shows.step(1)),
            KeyCode::BackTab => self.show(self.shows.step(Shows::ALL.len() - 1)),
            KeyCode::Down | KeyCode::Char('j') => self.scroll(|rows| rows.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.scroll(|rows| rows.saturating_sub(1)),
            KeyCode::PageDown => self.scroll(|rows| rows.saturating_add(PAGE)),
            KeyCode::PageUp => self.scroll(|rows| rows.saturating_sub(PAGE)),
            KeyCode::Home => self.skipped.set(0),
            _ => {}
        }
        false
    }

    fn scroll(&self, change: impl Fn(usize) -> usize) {
        self.skipped.set(change(self.skipped.get()));
    }

    fn enter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.is_typing = false;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.extend(letter.to_lowercase()),
            _ => {}
        }
        self.skipped.set(0);
    }

    fn show(&mut self, shows: Shows) {
        self.shows = shows;
        self.skipped.set(0);
    }

    /// Returns the rows whose names contain the filter, in the selected order.
    pub(super) fn arrange<'r>(&self, rows: &'r [Row]) -> Vec<&'r Row> {
        let mut rows: Vec<&Row> = rows.iter().filter(|row| self.has(&row.name)).collect();
        rows.sort_by(|a, b| self.sort.compare(a, b));
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// Returns `true` if a name contains the filter.
    pub(super) fn has(&self, name: &str) -> bool {
        name.to_lowercase().contains(&self.filter)
    }
}

const PAGE: usize = 10;

#[cfg(test)]
mod tests {
    use super::super::rates::Traffic;
    use super::*;

    fn press(controls: &mut Controls, codes: &[KeyCode]) -> bool {
        codes.iter().any(|code| controls.press(KeyEvent::new(*code, KeyModifiers::NONE)))
    }

    #[test]
    fn q_escape_and_control_c_quit() {
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(press(&mut Controls::default(), &[KeyCode::Char('q')]));
        assert!(press(&mut Controls::default(), &[KeyCode::Esc]));
        assert!(Controls::default().press(control_c));
        assert!(!press(&mut Controls::default(), &[KeyCode::Char('c'), KeyCode::Enter]));
        let mut typing = Controls { is_typing: true, ..Controls::default() };
        assert!(!press(&mut typing, &[KeyCode::Char('q'), KeyCode::Esc]), "Escape ends the filter");
        assert!(typing.press(control_c) && typing == Controls::default());
        let mut help = Controls { help: true, filter: "b".to_owned(), ..Controls::default() };
        assert!(!press(&mut help, &[KeyCode::Esc]) && !help.help && help.filter == "b");
        assert!(!press(&mut help, &[KeyCode::Esc]) && help.filter.is_empty());
        assert!(press(&mut help, &[KeyCode::Esc]));
    }

    #[test]
    fn keys_sort_filter_and_choose_a_table() {
        let row = |name: &str, packets: f64, bits: f64| Row {
            name: name.to_owned(),
            state: None,
            traffic: Traffic {
                packets_per_second: packets,
                bits_per_second: bits,
                new_flows_per_second: 0.0,
            },
        };
        let rows = [row("v10", 5.0, 1.0), row("V2", 5.0, 9.0), row("w1", 7.0, 2.0)];
        let mut controls = Controls::default();
        let names = |controls: &Controls| -> Vec<String> {
            controls.arrange(&rows).into_iter().map(|row| row.name.clone()).collect()
        };
        assert_eq!(names(&controls), ["w1", "V2", "v10"], "equal rates are sorted by name");
        press(&mut controls, &[KeyCode::Char('s')]);
        assert_eq!(
            (names(&controls), controls.sort.heading()),
            (vec!["V2".to_owned(), "w1".into(), "v10".into()], "bits/s")
        );
        press(&mut controls, &[KeyCode::Char('s'), KeyCode::Char('s'), KeyCode::Char('r')]);
        assert_eq!(names(&controls), ["w1", "v10", "V2"]);
        let keys =
            [KeyCode::Char('/'), KeyCode::Char('V'), KeyCode::Char('x'), KeyCode::Backspace, KeyCode::Enter];
        press(&mut controls, &keys);
        assert_eq!((&*controls.filter, controls.is_typing), ("v", false));
        assert_eq!(names(&controls), ["v10", "V2"]);
        press(&mut controls, &[KeyCode::Tab, KeyCode::Tab, KeyCode::PageDown, KeyCode::Up]);
        assert_eq!((controls.shows, controls.skipped.get()), (Shows::Backends, 9));
        press(&mut controls, &[KeyCode::BackTab, KeyCode::BackTab, KeyCode::BackTab]);
        assert_eq!((controls.shows, controls.skipped.get()), (Shows::Drops, 0));
    }
}
