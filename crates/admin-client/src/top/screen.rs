//! Draws the live screen of `sluicegate top` for any terminal size.
//!
//! Each table has the names in its first column. On a narrow terminal the tables are below each
//! other, and columns that do not fit are left out from the right. If a table has more rows than
//! fit, its last line shows the number of rows that do not fit.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use admin::view::Status;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Sparkline};

use super::controls::{Controls, Shows};
use super::rates::{self, Rates, bits, short};
use super::{Look, Shown};
use crate::status::{backend_states, named};
use crate::table::{ago, clean};

pub(super) fn draw(frame: &mut Frame<'_>, shown: &Shown, controls: &Controls) {
    let Shown { look, history, silence } = shown;
    if controls.help {
        return frame.render_widget(Paragraph::new(HELP), frame.area());
    }
    let spark = if frame.area().height >= TALL { 4 } else { 0 };
    let [head, line, body, foot] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(spark),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, head, look, *silence);
    if spark > 0 {
        draw_sparkline(frame, line, history);
    }
    draw_tables(frame, body, &look.rates, controls);
    frame.render_widget(Paragraph::new(foot_line(controls)), foot);
}

fn draw_tables(frame: &mut Frame<'_>, area: Rect, rates: &Rates, controls: &Controls) {
    let [vips, backends] = [("VIP", &rates.services), ("BACKEND", &rates.backends)]
        .map(|(title, rows)| traffic(title, rows, controls));
    let (threads, drops) = (threads(rates), drops(rates, controls));
    match controls.shows {
        Shows::All if area.width >= WIDE => {
            let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(2).areas(area);
            stack(frame, left, &[vips, threads]);
            stack(frame, right, &[backends, drops]);
        }
        Shows::All => stack(frame, area, &[vips, backends, threads, drops]),
        Shows::Vips => vips.draw(frame, area, &controls.skipped),
        Shows::Backends => backends.draw(frame, area, &controls.skipped),
        Shows::Threads => threads.draw(frame, area, &controls.skipped),
        Shows::Drops => drops.draw(frame, area, &controls.skipped),
    }
}

/// Draws tables below each other, with an empty line between them. If the area is too low, the last
/// tables are left out.
fn stack(frame: &mut Frame<'_>, area: Rect, tables: &[Table]) {
    let fits = usize::from(area.height / LEAST_HEIGHT).clamp(1, tables.len());
    let tables = &tables[..fits];
    let needs: Vec<u16> = tables.iter().map(Table::height).collect();
    let mut top = area.y;
    for (table, height) in tables.iter().zip(share(area.height, &needs)) {
        // The last line of each part is empty.
        let height = height.min(area.bottom().saturating_sub(top));
        table.draw(
            frame,
            Rect { y: top, height: height.saturating_sub(1).max(1).min(height), ..area },
            &Cell::new(0),
        );
        top += height;
    }
}

/// Divides the available lines. Tables that need less than an even share leave the remaining lines
/// to other tables.
fn share(available: u16, needs: &[u16]) -> Vec<u16> {
    let mut order: Vec<usize> = (0..needs.len()).collect();
    order.sort_by_key(|table| needs[*table]);
    let (mut left, mut heights) = (available, vec![0; needs.len()]);
    for (done, table) in order.into_iter().enumerate() {
        let others = u16::try_from(needs.len() - done).unwrap_or(u16::MAX);
        heights[table] = needs[table].min(left / others);
        left -= heights[table];
    }
    heights
}

/// A table whose first column contains names. The other columns are aligned to the right, except
/// for the state.
struct Table {
    heads: Vec<&'static str>,
    rows: Vec<(Vec<String>, Style)>,
}

impl Table {
    /// Returns the number of lines, with the heading and an empty line.
    fn height(&self) -> u16 {
        u16::try_from(self.rows.len().max(1) + 2).unwrap_or(u16::MAX)
    }

    /// Draws the rows after the skipped rows. At the end of the table, no more rows are skipped
    /// than needed.
    fn draw(&self, frame: &mut Frame<'_>, area: Rect, skipped: &Cell<usize>) {
        let room = usize::from(area.height).saturating_sub(1);
        skipped.set(skipped.get().min(self.rows.len().saturating_sub(room)));
        let rows = &self.rows[skipped.get()..];
        let shown = if rows.len() > room { room.saturating_sub(1) } else { rows.len() };
        let columns = self.columns(usize::from(area.width));
        let heads: Vec<String> = self.heads.iter().map(ToString::to_string).collect();
        let mut lines = vec![self.line(&heads, &columns).bold()];
        lines.extend(rows[..shown].iter().map(|(cells, style)| self.line(cells, &columns).style(*style)));
        if shown < rows.len() {
            lines.push(Line::from(format!("… {} more", rows.len() - shown)).dim());
        } else if self.rows.is_empty() {
            lines.push(Line::from("-").dim());
        }
        frame.render_widget(Paragraph::new(lines), area);
    }

    /// Returns the width of each column that fits. The names get the remaining width.
    fn columns(&self, width: usize) -> Vec<usize> {
        let cells = |column: usize| self.rows.iter().filter_map(move |(cells, _)| cells.get(column));
        let widest = |column: usize| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let mut columns = vec![0];
        let mut left = width.saturating_sub(widest(0).clamp(NAME, LONG_NAME));
        for (column, head) in self.heads.iter().enumerate().skip(1) {
            // The usual width of a rate is constant, so that the columns do not move.
            let needs = widest(column).max(if *head == RATE { USUAL_RATE } else { head.len() });
            let Some(rest) = left.checked_sub(needs + GAP) else { break };
            columns.push(needs);
            left = rest;
        }
        columns[0] = width - columns.iter().skip(1).map(|column| column + GAP).sum::<usize>();
        columns
    }

    fn line(&self, cells: &[String], columns: &[usize]) -> Line<'static> {
        let mut text = String::new();
        for (column, (cell, width)) in cells.iter().zip(columns).enumerate() {
            let cell = cut(cell, *width);
            text += &match (column, self.heads.get(column)) {
                (0, _) => format!("{cell:<width$}"),
                (_, Some(&STATE)) => format!("  {cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
        }
        Line::from(text)
    }
}

/// Cuts a text on the right.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(std::iter::once('…')).take(width).collect()
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, Look { status, rates }: &Look, silence: Duration) {
    let about = format!(
        "  {} of {}, generation {}, up {}, {} {}",
        status.machine,
        status.cluster,
        status.generation,
        ago(status.uptime_seconds),
        status.interface,
        status.mode
    );
    let total = &rates.total;
    let sums = format!(
        "{} packets/s, {}, {} new flows/s, {} of {} flow entries",
        short(total.packets_per_second),
        bits(total.bits_per_second),
        short(total.new_flows_per_second),
        short_count(rates.flow_entries),
        short_count(rates.flow_capacity),
    );
    let states = format!("backends: {}", backend_states(status.backends));
    let down = named("down", &status.down.backends, status.backends.down).join("");
    let down = if down.is_empty() { down } else { format!("   {}", clean(&down)) };
    let lines = vec![
        Line::from(vec![condition(status, silence), clean(&about).into()]),
        Line::from(sums).bold(),
        Line::from(vec![states.into(), down.red()]),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

/// Formats the condition of the machine. The condition of the machine is derived from the last
/// status response and the age of that response.
fn condition(status: &Status, silence: Duration) -> Span<'static> {
    match (status.stopping, status.ready, status.forwarder.healthy) {
        _ if silence >= LONG => format!("no response for {}", ago(silence.as_secs_f64())).red(),
        (_, _, false) => "forwarder not healthy".red(),
        (true, _, _) => "draining".yellow(),
        (_, true, _) => "ready".green(),
        (_, false, _) => "not ready".yellow(),
    }
}

fn draw_sparkline(frame: &mut Frame<'_>, area: Rect, history: &VecDeque<u64>) {
    let wide = usize::from(area.width.saturating_sub(2));
    let newest: Vec<u64> = history.iter().skip(history.len().saturating_sub(wide)).copied().collect();
    let line = Sparkline::default().block(Block::bordered().title("packets/s")).data(newest);
    frame.render_widget(line, area);
}

fn traffic(title: &'static str, rows: &[rates::Row], controls: &Controls) -> Table {
    let row = |row: &rates::Row| {
        let traffic = &row.traffic;
        let state = row.state.as_deref().unwrap_or("-");
        let style = match state {
            "serving" | "ready" | "-" => Style::new(),
            "draining" => Style::new().yellow(),
            _ => Style::new().red(),
        };
        let cells = vec![
            clean(&row.name),
            state.to_owned(),
            short(traffic.packets_per_second),
            bits(traffic.bits_per_second),
            short(traffic.new_flows_per_second),
        ];
        (cells, style)
    };
    let rows = controls.arrange(rows).into_iter().map(row).collect();
    Table { heads: vec![title, STATE, "PACKETS/S", RATE, "NEW FLOWS/S"], rows }
}

fn threads(rates: &Rates) -> Table {
    let row = |thread: &rates::Thread| {
        let style = if thread.busy_share > BUSY { Style::new().red() } else { Style::new() };
        let cells = vec![
            format!("{}-{}", if thread.is_io { "io" } else { "packet" }, thread.number),
            format!("{:.1}%", thread.busy_share * 100.0),
            short(thread.packets_per_second),
            short_count(thread.flow_entries),
        ];
        (cells, style)
    };
    Table {
        heads: vec!["THREAD", "BUSY", "PACKETS/S", "FLOWS"],
        rows: rates.threads.iter().map(row).collect(),
    }
}

fn drops(rates: &Rates, controls: &Controls) -> Table {
    let row = |drop: &rates::Drops| {
        let style = if drop.packets_per_second > 0.0 { Style::new().yellow() } else { Style::new() };
        (vec![clean(&drop.reason), short(drop.packets_per_second), short_count(drop.packets)], style)
    };
    let rows = rates.drops.iter().filter(|drop| controls.has(&drop.reason)).map(row).collect();
    Table { heads: vec!["DROP REASON", "PACKETS/S", "SINCE START"], rows }
}

fn foot_line(controls: &Controls) -> Line<'static> {
    if controls.is_typing {
        return Line::from(format!("filter: {}_   (Enter: apply, Esc: clear)", clean(&controls.filter)));
    }
    let order = if controls.reversed { ", reversed" } else { "" };
    let filter = match controls.filter.is_empty() {
        true => String::new(),
        false => format!(", names with \"{}\"", clean(&controls.filter)),
    };
    Line::from(format!("?: help  q: quit  by {}{order}{filter}", controls.sort.heading())).dim()
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn short_count(count: u64) -> String {
    short(count as f64)
}

/// The screen shows a warning after this time without a response.
const LONG: Duration = Duration::from_secs(3);
/// The busy share above which a thread is likely to drop packets soon.
const BUSY: f64 = 0.9;
/// The heading of the column with states, which is aligned to the left.
const STATE: &str = "STATE";
/// The heading of the column with bits per second, and the usual width of its cells.
const RATE: &str = "RATE";
const USUAL_RATE: usize = "98.5kbit/s".len();
/// The height from which the screen has a sparkline.
const TALL: u16 = 30;
/// The width from which two tables are next to each other.
const WIDE: u16 = 160;
/// The lines that a table needs at least: the heading, one row and an empty line.
const LEAST_HEIGHT: u16 = 3;
/// The columns between two columns of a table.
const GAP: usize = 2;
/// The least width of names, and the width up to which names are shown before other columns.
const NAME: usize = 11;
const LONG_NAME: usize = 24;
const HELP: &str = "\
Keys of sluicegate top

  q, Ctrl-C     quit
  ?, h          show or hide this help
  s             sort by the next column: packets/s, bits/s, new flows/s, name
  r             reverse the order
  /             show only rows whose names contain a text; Enter applies it
  Esc           hide this help, clear the filter, or quit
  Tab           show only one table: VIPs, backends, threads, drops, then all
  Up, Down      scroll, if only one table is shown
  PgUp, PgDn    scroll by ten rows

Rates are averages of the last interval (--interval). A red row needs attention:
a service or backend that does not serve, or a thread that is over 90% busy.
";

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use admin::view::{DownView, ForwarderView, StateTotals};

    use super::super::rates::{Drops, Thread, Traffic};
    use super::*;

    fn rates() -> Rates {
        let traffic = |packets: f64| Traffic {
            packets_per_second: packets,
            bits_per_second: packets * 500.0,
            new_flows_per_second: packets / 10.0,
        };
        let row = |name: &str, state: &str, packets: f64| rates::Row {
            name: name.into(),
            state: Some(state.into()),
            traffic: traffic(packets),
        };
        let thread = |is_io, number, busy_share, packets_per_second, flow_entries| Thread {
            is_io,
            number,
            busy_share,
            packets_per_second,
            flow_entries,
        };
        let backends = (1..=12).map(|number| row(&format!("web-{number}"), "serving", 197.0));
        Rates {
            seconds: 1.0,
            total: traffic(12_345.0),
            flow_entries: 1_500,
            flow_capacity: 1_000_000,
            services: vec![
                row("www tcp 80,443", "ready", 197.0),
                row("a-vip-with-a-name-of-more-than-forty-letters udp 53", "not ready", 999_949.0),
            ],
            backends: backends.chain([row("b\x1b2", "draining/serving", 14_880_000.0)]).collect(),
            drops: vec![Drops { reason: "no_vip".into(), packets_per_second: 3.0, packets: 12 }],
            threads: vec![thread(false, 0, 0.255, 0.0, 1_500), thread(true, 0, 0.5, 12_345.0, 0)],
        }
    }

    fn screen(width: u16, height: u16, silence: u64, controls: &Controls) -> String {
        let status = Status {
            machine: "lb1".into(),
            cluster: "fra1".into(),
            generation: 7,
            uptime_seconds: 3_725.0,
            interface: "eth0".into(),
            mode: "copy".into(),
            ready: true,
            forwarder: ForwarderView { healthy: true, ..ForwarderView::default() },
            backends: StateTotals { serving: 1, draining: 1, down: 12, unknown: 0, flushing: 0 },
            down: DownView { backends: vec!["b3 in web".into()], ..DownView::default() },
            ..Status::default()
        };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let (look, history) = (Look { status, rates: rates() }, VecDeque::from([0, 5, 10]));
        let shown = Shown { look, history, silence: Duration::from_secs(silence) };
        terminal.draw(|frame| draw(frame, &shown, controls)).unwrap();
        let lines = terminal.backend().to_string();
        lines.lines().map(|line| line.trim_matches('"').trim_end().to_owned() + "\n").collect()
    }

    // Promise: top-size
    #[test]
    fn terminal_of_80x24_has_names_and_whole_numbers() {
        let screen = screen(80, 24, 0, &Controls::default());
        assert_eq!(screen, SCREEN, "{screen}");
    }

    #[test]
    fn wide_terminal_has_tables_next_to_each_other() {
        let screen = screen(200, 50, 7, &Controls::default());
        assert!(screen.starts_with("no response for 7s  lb1 of fra1, generation 7, up 1h02m"), "{screen}");
        let heads = screen.lines().find(|line| line.starts_with("VIP ")).unwrap();
        assert!(heads.contains("BACKEND "), "{screen}");
        for wanted in
            ["a-vip-with-a-name-of-more-than-forty-letters udp 53", "web-12", "draining/serving", "█", "io-0"]
        {
            assert!(screen.contains(wanted), "{wanted}\n{screen}");
        }
        assert!(!screen.contains('\x1b') && !screen.contains("… "), "{screen}");
    }

    #[test]
    fn one_table_scrolls_and_is_filtered() {
        let mut controls = Controls { shows: Shows::Backends, skipped: 2.into(), ..Controls::default() };
        let shown = screen(80, 10, 0, &controls);
        assert!(!shown.contains("VIP") && shown.contains("\nweb-2 ") && !shown.contains("web-1 "), "{shown}");
        assert!(shown.contains("… 7 more\n"), "{shown}");
        controls.skipped.set(usize::MAX);
        assert!(screen(80, 10, 0, &controls).contains("\nweb-12 "), "the end of the list");
        let end = controls.skipped.get();
        controls.press(KeyEvent::new(KeyCode::Up, KeyModifiers::NONE));
        assert!(
            end < 12 && !screen(80, 10, 0, &controls).contains("\nweb-12 "),
            "the first key scrolls back"
        );
        controls.filter = "web-1".to_owned();
        let shown = screen(80, 24, 0, &controls);
        assert_eq!(shown.matches("web-1").count(), 5, "four rows and the foot line: {shown}");
        assert!(shown.contains("names with \"web-1\""), "{shown}");
        controls.help = true;
        assert!(screen(80, 24, 0, &controls).contains("sort by the next column"));
    }

    #[test]
    fn narrow_terminal_leaves_out_columns_on_the_right() {
        let screen = screen(40, 24, 0, &Controls::default());
        let row = screen.lines().find(|line| line.starts_with("www tcp")).unwrap();
        assert!(row.ends_with("  ready"), "{screen}");
    }

    #[test]
    fn no_size_is_too_small() {
        for (width, height) in [(1, 1), (10, 2), (80, 5), (20, 40), (300, 3)] {
            for shows in [Shows::All, Shows::Drops] {
                screen(width, height, 0, &Controls { shows, ..Controls::default() });
            }
        }
    }

    const SCREEN: &str = "\
ready  lb1 of fra1, generation 7, up 1h02m, eth0 copy
12.3k packets/s, 6.17Mbit/s, 1.23k new flows/s, 1.50k of 1.00M flow entries
backends: 1 serving, 1 draining, 12 down, 0 unknown   down: b3 in web and 11 mor
VIP                               STATE      PACKETS/S         RATE  NEW FLOWS/S
a-vip-with-a-name-of-more-than-…  not ready     999.9k  500.0Mbit/s       100.0k
www tcp 80,443                    ready            197   98.5kbit/s         19.7

BACKEND                     STATE             PACKETS/S        RATE  NEW FLOWS/S
b\u{fffd}2                         draining/serving      14.9M  7.44Gbit/s        1.49M
web-1                       serving                 197  98.5kbit/s         19.7
web-2                       serving                 197  98.5kbit/s         19.7
web-3                       serving                 197  98.5kbit/s         19.7
web-4                       serving                 197  98.5kbit/s         19.7
web-5                       serving                 197  98.5kbit/s         19.7
… 7 more

THREAD                                                    BUSY  PACKETS/S  FLOWS
packet-0                                                 25.5%          0  1.50k
io-0                                                     50.0%      12.3k      0

DROP REASON                                               PACKETS/S  SINCE START
no_vip                                                            3           12

?: help  q: quit  by packets/s
";

    #[test]
    fn small_tables_leave_lines_to_large_ones() {
        assert_eq!(share(20, &[4, 15, 4, 3]), [4, 9, 4, 3]);
        assert_eq!(share(10, &[30, 30]), [5, 5]);
        assert_eq!(share(0, &[3]), [0]);
    }
}
