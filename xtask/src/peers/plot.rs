//! Draws the plot of a comparison. The plot has one row with two bars for each peer: packets per
//! second, and CPU time per packet.

use std::fmt::Write as _;

use crate::peers::results::Row;
use crate::stage::Rates;

/// Draws the plot and returns it as SVG.
pub(crate) fn svg(rows: &[Row]) -> String {
    let shown: Vec<Line> = rows.iter().filter_map(Line::of).collect();
    let height = TOP + shown.len() * STEP + 10;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (left, title) in
        [(RATE_AT, "thousand packets per second"), (COST_AT, "CPU seconds per million packets")]
    {
        let _ = writeln!(text, "<text x=\"{left}\" y=\"20\" font-weight=\"bold\">{title}</text>");
    }
    let most = |of: fn(&Line) -> f64| shown.iter().map(of).fold(0.0, f64::max);
    let scales = [BAR / most(|line| line.thousands), BAR / most(|line| line.seconds)];
    for (n, line) in shown.iter().enumerate() {
        text += &line.svg(TOP + n * STEP, scales);
    }
    text + "</svg>\n"
}

struct Line {
    name: &'static str,
    thousands: f64,
    seconds: f64,
}

impl Line {
    fn of(row: &Row) -> Option<Self> {
        let thousands = row.of_packets(|turn| turn.taken / 1e3)?;
        Some(Self { name: row.name, thousands, seconds: row.of_packets(Rates::seconds_a_million)? })
    }

    fn svg(&self, y: usize, scales: [f64; 2]) -> String {
        let Self { name, thousands, seconds } = self;
        let base = y + 12;
        let colour = if name.starts_with("af-") { "#1f6fb2" } else { "#9aa5b1" };
        let bar = |left: usize, value: f64, scale: f64, label: String| {
            let length = value * scale;
            #[expect(clippy::cast_precision_loss, reason = "the width is far below 2^52")]
            let after = left as f64 + length + 4.0;
            format!(
                "<rect x=\"{left}\" y=\"{y}\" width=\"{length:.1}\" height=\"16\" fill=\"{colour}\"/>\
                 <text x=\"{after:.1}\" y=\"{base}\">{label}</text>\n"
            )
        };
        format!("<text x=\"{NAME_ENDS}\" y=\"{base}\" text-anchor=\"end\">{name}</text>\n")
            + &bar(RATE_AT, *thousands, scales[0], format!("{thousands:.0}"))
            + &bar(COST_AT, *seconds, scales[1], format!("{seconds:.2}"))
    }
}

const WIDTH: usize = 820;
const TOP: usize = 32;
const STEP: usize = 22;
const NAME_ENDS: usize = 110;
const RATE_AT: usize = 118;
const COST_AT: usize = 480;
/// The length of the longest bar in pixels.
const BAR: f64 = 280.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_bar_is_the_largest_value() {
        let turn = |taken| Rates { offered: 1e6, taken, ran: 1.0, device: 1.0 };
        let row = |name, taken| Row { packets: vec![turn(taken)], ..Row::new(name, None) };
        let rows = [row("af-xdp-gre", 400e3), row("nginx", 100e3), Row::new("haproxy", None)];
        let drawn = svg(&rows);
        // The first peer forwards four times as many packets as the second peer, at a quarter of
        // the cost per packet.
        for bar in ["x=\"118\" y=\"32\" width=\"280.0\"", "x=\"118\" y=\"54\" width=\"70.0\""] {
            assert!(drawn.contains(bar), "{drawn}");
        }
        for bar in ["x=\"480\" y=\"32\" width=\"70.0\"", "x=\"480\" y=\"54\" width=\"280.0\""] {
            assert!(drawn.contains(bar), "{drawn}");
        }
        assert!(!drawn.contains("haproxy") && drawn.contains(">10.00<"), "{drawn}");
    }
}
