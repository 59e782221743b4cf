//! The live screen.
//!
//! In: a status, rates, and the totals before them. Out: a frame of any size; what does not fit is cut off at its end.

use std::collections::VecDeque;

use admin::view::Status;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};

use super::rates::{self, Rates, bits, short};
use crate::table::{ago, clean};

pub(crate) fn draw(frame: &mut Frame<'_>, status: &Status, rates: &Rates, history: &VecDeque<u64>) {
    let [head, line, traffic, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(4),
        Constraint::Fill(1),
        Constraint::Length(3 + foot_rows(rates)),
    ])
    .areas(frame.area());
    draw_head(frame, head, status, rates);
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

fn draw_head(frame: &mut Frame<'_>, area: Rect, status: &Status, rates: &Rates) {
    let ready = match (status.ready, status.forwarder.healthy) {
        (true, true) => "ready".green(),
        (false, true) => "not ready".yellow(),
        (_, false) => "forwarder not healthy".red(),
    };
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
        "{} packets/s, {}, {} new flows/s, {} of {} flow entries   (q: leave)",
        short(total.packets_per_second),
        bits(total.bits_per_second),
        short(total.new_flows_per_second),
        short_count(rates.flow_entries),
        short_count(rates.flow_capacity),
    );
    let lines = vec![Line::from(vec![clean(&about).into(), ready]), Line::from(sums).bold()];
    frame.render_widget(Paragraph::new(lines), area);
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
        Row::new(std::iter::once(Cell::from(clean(&row.name))).chain(numbers.map(right)))
    });
    let widths = [Constraint::Fill(1), Constraint::Length(9), Constraint::Length(13), Constraint::Length(7)];
    let head = ["name".into(), right("packets/s"), right("rate"), right("new/s")];
    draw_table(frame, area, title, Table::new(cells, widths), Row::new(head));
}

fn draw_threads(frame: &mut Frame<'_>, area: Rect, rates: &Rates) {
    let cells = rates.threads.iter().enumerate().map(|(number, thread)| {
        let style = if thread.busy_share > BUSY { Style::new().red() } else { Style::new() };
        let busy = format!("{:.1}%", thread.busy_share * 100.0);
        let flows = short_count(thread.flow_entries);
        let numbers = [busy, short(thread.packets_per_second), flows];
        Row::new(std::iter::once(Cell::from(number.to_string())).chain(numbers.map(right))).style(style)
    });
    let widths = [Constraint::Fill(1), Constraint::Length(7), Constraint::Length(9), Constraint::Length(8)];
    let head = ["thread".into(), right("busy"), right("packets/s"), right("flows")];
    draw_table(frame, area, "packet threads", Table::new(cells, widths), Row::new(head));
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

/// Above it a thread will soon drop.
const BUSY: f64 = 0.9;
/// Rows of threads and drops, without frame and heading.
const MOST_FOOT_ROWS: usize = 12;

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::rates::{Drops, Thread, Traffic};
    use super::*;

    fn rates() -> Rates {
        let traffic =
            Traffic { packets_per_second: 12_345.0, bits_per_second: 6.5e6, new_flows_per_second: 42.0 };
        let row = |name: &str| rates::Row { name: name.into(), traffic };
        Rates {
            seconds: 1.0,
            total: traffic,
            flow_entries: 1_500,
            flow_capacity: 1_000_000,
            services: vec![row("www tcp 80,443")],
            backends: vec![row("b1"), row("b\x1b2")],
            drops: vec![Drops { reason: "no_vip".into(), packets_per_second: 3.0, packets: 12 }],
            threads: vec![Thread { busy_share: 0.255, packets_per_second: 12_345.0, flow_entries: 1_500 }],
        }
    }

    fn screen(width: u16, height: u16) -> String {
        let status = Status {
            machine: "lb1".into(),
            cluster: "fra1".into(),
            generation: 7,
            uptime_seconds: 3_725.0,
            ..Status::default()
        };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let history = VecDeque::from([0, 5, 10]);
        terminal.draw(|frame| draw(frame, &status, &rates(), &history)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn everything_is_on_a_usual_screen() {
        let screen = screen(120, 30);
        for wanted in [
            "lb1 of fra1, generation 7, up 1h02m",
            "forwarder not healthy",
            "12.3k packets/s, 6.50Mbit/s, 42 new flows/s, 1.50k of 1.00M flow entries",
            "www tcp 80,443",
            "b1",
            "25.5%",
            "no_vip",
            "█",
        ] {
            assert!(screen.contains(wanted), "{wanted}\n{screen}");
        }
        assert!(!screen.contains('\x1b'));
    }

    #[test]
    fn no_size_is_too_small() {
        for (width, height) in [(1, 1), (10, 2), (80, 5), (20, 40), (300, 3)] {
            screen(width, height);
        }
    }
}
