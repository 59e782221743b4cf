//! Draws the SVG chart of a report, which shows broken connections over time. Each hashing method
//! has a solid line for the run with flow tables and a dashed line for the run without.

use std::fmt::Write as _;

use crate::outcome::{Outcome, SPANS};
use crate::report::{Report, Run, at};

/// Draws one chart for each run, one below the other.
#[must_use]
pub fn svg(report: &Report) -> String {
    let height = HEIGHT * report.runs.len().max(1);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (place, run) in report.runs.iter().enumerate() {
        let _ = writeln!(text, "<g transform=\"translate(0 {})\">", place * HEIGHT);
        text += &panel(run);
        text += "</g>\n";
    }
    text + "</svg>\n"
}

fn panel(run: &Run) -> String {
    let lines: Vec<Vec<f64>> = run.outcomes.iter().map(cumulated).collect();
    let top = scale(lines.iter().filter_map(|line| line.last()).copied().fold(0.0, f64::max));
    let title = format!(
        "{}: broken connections in percent of all flows; {} machines, {} backends, {} concurrent flows",
        run.label, run.machines, run.backends, run.living_flows
    );
    let mut text = format!("<text x=\"14\" y=\"20\" font-size=\"15\">{}</text>\n", escaped(&title));
    text += &axis(top);
    text += &events(run);
    for (number, (outcome, line)) in run.outcomes.iter().zip(&lines).enumerate() {
        text += &curve(outcome, line, top);
        text += &legend(outcome, number);
    }
    let (y, end) = (BOTTOM + 16.0, at(run.duration_seconds));
    let _ = writeln!(text, "<text x=\"{RIGHT}\" y=\"{y}\" text-anchor=\"end\">{end}</text>");
    text
}

fn axis(top: f64) -> String {
    let mut text = String::new();
    for step in 0..=4 {
        let value = top * f64::from(step) / 4.0;
        let (y, x, shown) = (height_of(value, top), LEFT - 6.0, (value * 1e9).round() / 1e9);
        let below = y + 4.0;
        let _ = writeln!(
            text,
            "<path d=\"M{LEFT} {y:.1}H{RIGHT}\" stroke=\"#ddd\"/>\
             <text x=\"{x}\" y=\"{below:.1}\" text-anchor=\"end\">{shown}</text>"
        );
    }
    text
}

fn events(run: &Run) -> String {
    let mut text = String::new();
    for (number, event) in run.events.iter().enumerate() {
        let x = LEFT + (RIGHT - LEFT) * event.at_seconds / run.duration_seconds;
        // The labels of neighboring events have different heights, so that they do not overlap.
        let y = TOP - 4.0 - 13.0 * (number % 3) as f64;
        let (from, beside, when, what) = (y + 2.0, x + 2.0, at(event.at_seconds), escaped(&event.what));
        let _ = writeln!(
            text,
            "<path d=\"M{x:.1} {from:.1}V{BOTTOM}\" stroke=\"#bbb\" stroke-dasharray=\"2 3\"/>\
             <text x=\"{beside:.1}\" y=\"{y:.1}\" font-size=\"10\" fill=\"#555\">{when} {what}</text>"
        );
    }
    text
}

/// For each time span, returns the percentage of flows that were broken up to the end of the time
/// span.
fn cumulated(outcome: &Outcome) -> Vec<f64> {
    let percent =
        |broken: u64| if outcome.flows == 0 { 0.0 } else { 100.0 * broken as f64 / outcome.flows as f64 };
    let sums = outcome.broken_over_time.iter().scan(0, |sum, broken| {
        *sum += broken;
        Some(percent(*sum))
    });
    std::iter::once(0.0).chain(sums).collect()
}

fn curve(outcome: &Outcome, line: &[f64], top: f64) -> String {
    let point = |(span, value): (usize, &f64)| {
        let x = LEFT + (RIGHT - LEFT) * span as f64 / SPANS as f64;
        format!("{x:.1},{:.1}", height_of(*value, top))
    };
    let points: Vec<String> = line.iter().enumerate().map(point).collect();
    format!("<polyline points=\"{}\" fill=\"none\" {}/>\n", points.join(" "), stroke(outcome))
}

fn legend(outcome: &Outcome, number: usize) -> String {
    let y = TOP + 16.0 + 16.0 * number as f64;
    let with = if outcome.flow_tables { "with" } else { "without" };
    format!(
        "<path d=\"M{} {y}h26\" {}/><text x=\"{}\" y=\"{}\">{} {with} flow tables: {}</text>\n",
        LEFT + 10.0,
        stroke(outcome),
        LEFT + 42.0,
        y + 4.0,
        outcome.hashing.name(),
        outcome.counts.broken
    )
}

/// Returns the line style. The colors are distinguishable in print and for color-blind readers
/// (Okabe, Ito).
fn stroke(outcome: &Outcome) -> String {
    let color = match outcome.hashing {
        crate::Hashing::Maglev => "#0072b2",
        crate::Hashing::Ketama => "#d55e00",
        crate::Hashing::Rendezvous => "#009e73",
    };
    let dashes = if outcome.flow_tables { "" } else { " stroke-dasharray=\"6 4\"" };
    format!("stroke=\"{color}\" stroke-width=\"2\"{dashes}")
}

/// Returns the smallest number of the form 1, 2, 4 or 5 times a power of ten that is at least
/// `most`.
fn scale(most: f64) -> f64 {
    let mut unit = 1e-6;
    loop {
        for factor in [1.0, 2.0, 4.0, 5.0] {
            if unit * factor >= most {
                return unit * factor;
            }
        }
        unit *= 10.0;
    }
}

fn height_of(value: f64, top: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * value / top
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

const WIDTH: usize = 900;
const HEIGHT: usize = 360;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 880.0;
const TOP: f64 = 74.0;
const BOTTOM: f64 = 330.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_at_a_round_number_above_all_values() {
        for (most, top) in [(0.0, 1e-6), (0.9, 1.0), (1.1, 2.0), (3.0, 4.0), (4.5, 5.0), (70.0, 100.0)] {
            assert!((scale(most) - top).abs() < top * 1e-9, "{most}: {}", scale(most));
        }
    }
}
