//! Draws the live screen of `sluicegate top` for any terminal size. If a table does not fit, its
//! last rows are omitted.

use std::collections::VecDeque;
use std::time::Duration;

use admin::view::Status;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};

use super::rates::{self, Rates, bits, short};
use super::{Look, Shown};
use crate::status::{backend_states, named};
use crate::table::{ago, clean};

pub(super) fn draw(frame: &mut Frame<'_>, shown: &Shown) {
    let Shown { look, history, silence } = shown;
    let rates = &look.rates;
    let [head, line, traffic, foot] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(4),
        Constraint::Fill(1),
        Constraint::Length(3 + foot_rows(rates)),
    ])
    .areas(frame.area());
    draw_head(frame, head, look, *silence);
    draw_sparkline(frame, line, history);
    let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(traffic);
    draw_traffic(frame, left, "VIPs", &rates.services);
    draw_traffic(frame, right, "backends", &rates.backends);
    let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(foot);
    draw_threads(frame, left, rates);
    draw_drops(frame, right, rates);
}

fn foot_rows(rates: &Rates) -> u16 {
    let rows = rates.threads.len().max(rates.drops.len()).clamp(1, MOST_FOOT_ROWS);
    u16::try_from(rows).unwrap_or(u16::MAX)
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, Look { status, rates }: &Look, silence: Duration) {
    let about = format!(
        "{} of {}, generation {}, up {}, {} {}, ",
        status.machine,
        status.cluster,
        status.generation,
        ago(status.uptime_seconds),
        status.interface,
        status.mode
    );
    let total = &rates.total;
    let sums = format!(
        "{} packets/s, {}, {} new flows/s, {} of {} flow entries   (q: quit)",
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
        Line::from(vec![clean(&about).into(), condition(status, silence)]),
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

fn draw_traffic(frame: &mut Frame<'_>, area: Rect, title: &'static str, rows: &[rates::Row]) {
    let cells = rows.iter().map(|row| {
        let traffic = &row.traffic;
        let numbers = [
            short(traffic.packets_per_second),
            bits(traffic.bits_per_second),
            short(traffic.new_flows_per_second),
        ];
        let state = row.state.as_deref().unwrap_or("-");
        let style = match state {
            "serving" | "ready" | "-" => Style::new(),
            "draining" => Style::new().yellow(),
            _ => Style::new().red(),
        };
        let words = [Cell::from(clean(&row.name)), Cell::from(state.to_owned()).style(style)];
        Row::new(words.into_iter().chain(numbers.map(right)))
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(13),
        Constraint::Length(7),
    ];
    let head = ["name".into(), "state".into(), right("packets/s"), right("rate"), right("new/s")];
    draw_table(frame, area, title, Table::new(cells, widths), Row::new(head));
}

fn draw_threads(frame: &mut Frame<'_>, area: Rect, rates: &Rates) {
    let cells = rates.threads.iter().map(|thread| {
        let style = if thread.busy_share > BUSY { Style::new().red() } else { Style::new() };
        let busy = format!("{:.1}%", thread.busy_share * 100.0);
        let flows = short_count(thread.flow_entries);
        let numbers = [busy, short(thread.packets_per_second), flows];
        let name = format!("{}-{}", if thread.is_io { "io" } else { "packet" }, thread.number);
        Row::new(std::iter::once(Cell::from(name)).chain(numbers.map(right))).style(style)
    });
    let widths = [Constraint::Fill(1), Constraint::Length(7), Constraint::Length(9), Constraint::Length(8)];
    let head = ["thread".into(), right("busy"), right("packets/s"), right("flows")];
    draw_table(frame, area, "threads", Table::new(cells, widths), Row::new(head));
}

fn draw_drops(frame: &mut Frame<'_>, area: Rect, rates: &Rates) {
    let cells = rates.drops.iter().map(|drop| {
        let style = if drop.packets_per_second > 0.0 { Style::new().yellow() } else { Style::new() };
        let numbers = [short(drop.packets_per_second), short_count(drop.packets)];
        Row::new(std::iter::once(Cell::from(clean(&drop.reason))).chain(numbers.map(right))).style(style)
    });
    let widths = [Constraint::Fill(1), Constraint::Length(9), Constraint::Length(8)];
    let head = ["reason".into(), right("packets/s"), right("all")];
    draw_table(frame, area, "drops", Table::new(cells, widths), Row::new(head));
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, title: &'static str, table: Table<'_>, head: Row<'_>) {
    frame.render_widget(table.header(head.bold()).block(Block::bordered().title(title)), area);
}

fn right(text: impl Into<String>) -> Cell<'static> {
    Cell::from(Line::from(text.into()).right_aligned())
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn short_count(count: u64) -> String {
    short(count as f64)
}

/// The screen shows a warning after this time without a response.
const LONG: Duration = Duration::from_secs(3);
/// The busy share above which a thread is likely to drop packets soon.
const BUSY: f64 = 0.9;
/// The maximum number of rows for threads and drops, not counting the border and the heading.
const MOST_FOOT_ROWS: usize = 12;

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use admin::view::{DownView, StateTotals};

    use super::super::rates::{Drops, Thread, Traffic};
    use super::*;

    fn rates() -> Rates {
        let traffic =
            Traffic { packets_per_second: 12_345.0, bits_per_second: 6.5e6, new_flows_per_second: 42.0 };
        let row =
            |name: &str, state: &str| rates::Row { name: name.into(), state: Some(state.into()), traffic };
        Rates {
            seconds: 1.0,
            total: traffic,
            flow_entries: 1_500,
            flow_capacity: 1_000_000,
            services: vec![row("www tcp 80,443", "ready")],
            backends: vec![row("b1", "serving"), row("b\x1b2", "draining")],
            drops: vec![Drops { reason: "no_vip".into(), packets_per_second: 3.0, packets: 12 }],
            threads: vec![
                Thread {
                    is_io: false,
                    number: 0,
                    busy_share: 0.255,
                    packets_per_second: 0.0,
                    flow_entries: 1_500,
                },
                Thread {
                    is_io: true,
                    number: 0,
                    busy_share: 0.5,
                    packets_per_second: 12_345.0,
                    flow_entries: 0,
                },
            ],
        }
    }

    fn screen(width: u16, height: u16, silence: u64) -> String {
        let status = Status {
            machine: "lb1".into(),
            cluster: "fra1".into(),
            generation: 7,
            uptime_seconds: 3_725.0,
            backends: StateTotals { serving: 1, draining: 1, down: 12, unknown: 0, flushing: 0 },
            down: DownView { backends: vec!["b3 in web".into()], ..DownView::default() },
            ..Status::default()
        };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let (look, history) = (Look { status, rates: rates() }, VecDeque::from([0, 5, 10]));
        let shown = Shown { look, history, silence: Duration::from_secs(silence) };
        terminal.draw(|frame| draw(frame, &shown)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn everything_is_on_a_usual_screen() {
        assert!(screen(120, 30, 7).contains("up 1h02m,  , no response for 7s"), "{}", screen(120, 30, 7));
        let screen = screen(120, 30, 0);
        for wanted in [
            "lb1 of fra1, generation 7, up 1h02m",
            "forwarder not healthy",
            "12.3k packets/s, 6.50Mbit/s, 42 new flows/s, 1.50k of 1.00M flow entries",
            "www tcp 80,443",
            "b1",
            "packet-0",
            "25.5%",
            "io-0",
            "no_vip",
            "backends: 1 serving, 1 draining, 12 down, 0 unknown   down: b3 in web and 11 more",
            "ready",
            "serving",
            "draining",
            "█",
        ] {
            assert!(screen.contains(wanted), "{wanted}\n{screen}");
        }
        assert!(!screen.contains('\x1b'));
    }

    #[test]
    fn no_size_is_too_small() {
        for (width, height) in [(1, 1), (10, 2), (80, 5), (20, 40), (300, 3)] {
            screen(width, height, 0);
        }
    }
}
