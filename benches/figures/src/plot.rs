//! Draws line and bar charts as SVG, with a title, units on the axes, and the origin of the values.

use std::ops::Range;

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, SegmentValue, SegmentedCoord};
use plotters::coord::types::{RangedCoordf64, RangedCoordu32};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::Csv;

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Colors that are distinguishable in print and for color-blind people (palette of Okabe and Ito).
pub(crate) const COLORS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(110, 110, 110)];

/// The segment colors of a stacked bar, from the same palette.
const STACK_COLORS: [RGBColor; 9] = [
    RGBColor(110, 110, 110),
    RGBColor(190, 190, 190),
    RGBColor(80, 60, 40),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(240, 228, 66),
    RGBColor(204, 121, 167),
];

/// The lines of text above a plot: the title, the values from the paper, and the origin of the
/// rows.
pub(crate) struct Sheet {
    title: String,
    below: [String; 2],
    height: u32,
}

impl Sheet {
    /// Creates the text lines. The command, the commit and the machine come from the notes of the
    /// CSV.
    pub(crate) fn new(title: &str, paper: &str, csv: &Csv) -> Result<Self> {
        Self::with_note(title, &format!("the paper: {paper}"), csv)
    }

    /// Creates the text lines of a figure that repeats no measurement of a paper.
    pub(crate) fn with_note(title: &str, note: &str, csv: &Csv) -> Result<Self> {
        let commit = csv.note("commit")?;
        let origin = format!(
            "{}; commit {}; {}; {}",
            csv.note("command")?,
            commit.get(..SHORT_COMMIT).unwrap_or(commit),
            csv.note("date")?,
            csv.note("machine")?
        );
        Ok(Self { title: title.into(), below: [note.into(), origin], height: 480 })
    }

    pub(crate) fn with_height(self, height: u32) -> Self {
        Self { height, ..self }
    }
}

/// Returns an SVG with the text lines of the sheet. `draw` draws the chart below these lines.
pub(crate) fn svg(sheet: &Sheet, draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, sheet.height)).into_drawing_area();
        done(root.fill(&WHITE))?;
        done(root.draw_text(&sheet.title, &(FONT, 19).into_text_style(&root), (14, 10)))?;
        for (line, at) in sheet.below.iter().zip([36, 52]) {
            done(root.draw_text(line, &(FONT, 12).into_text_style(&root).color(&COLORS[3]), (14, at)))?;
        }
        let (_, plots) = root.split_vertically(TITLE_HEIGHT);
        draw(&plots)?;
        done(root.present())?;
    }
    Ok(text + "\n")
}

/// The labels and value ranges of both axes.
pub(crate) struct Axes<'a> {
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
    pub(crate) x_range: Range<f64>,
    pub(crate) y_range: Range<f64>,
}

pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) color: RGBColor,
}

/// Draws a line chart with a legend. Lines with few points also have a marker at each point.
pub(crate) fn lines(area: &Area<'_>, axes: &Axes<'_>, lines: &[Line]) -> Result<()> {
    draw_lines(area, axes, lines, &|y| format!("{y:.1}"))
}

/// Draws a line chart with a logarithmic y axis. All y values must be positive.
pub(crate) fn lines_by_logarithm(area: &Area<'_>, axes: &Axes<'_>, lines: &[Line]) -> Result<()> {
    let by_logarithm = |line: &Line| Line {
        name: line.name.clone(),
        points: line.points.iter().map(|(x, y)| (*x, y.log10())).collect(),
        color: line.color,
    };
    let lines: Vec<Line> = lines.iter().map(by_logarithm).collect();
    let Axes { x, y, x_range, y_range } = axes;
    let (x_range, y_range) = (x_range.clone(), y_range.start.log10()..y_range.end.log10());
    draw_lines(area, &Axes { x, y, x_range, y_range }, &lines, &|y| format!("{:.0}", 10_f64.powf(*y)))
}

fn draw_lines(
    area: &Area<'_>,
    axes: &Axes<'_>,
    lines: &[Line],
    y_label: &dyn Fn(&f64) -> String,
) -> Result<()> {
    let mut chart = done(
        ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(64)
            .build_cartesian_2d(axes.x_range.clone(), axes.y_range.clone()),
    )?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(axes.x).y_desc(axes.y).x_labels(13).y_labels(8).light_line_style(TRANSPARENT);
    mesh.y_label_formatter(y_label);
    done(mesh.label_style((FONT, 12)).axis_desc_style((FONT, 13)).draw())?;
    draw_series(&mut chart, lines)?;
    legend(&mut chart, SeriesLabelPosition::UpperRight)
}

/// Draws a line chart whose axes are both logarithmic, and whose legend is in the upper left
/// corner. All values must be positive.
pub(crate) fn lines_by_logarithms(area: &Area<'_>, axes: &Axes<'_>, lines: &[Line]) -> Result<()> {
    let mut chart = done(
        ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(64)
            .build_cartesian_2d(axes.x_range.clone().log_scale(), axes.y_range.clone().log_scale()),
    )?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(axes.x).y_desc(axes.y).x_labels(9).y_labels(9).light_line_style(TRANSPARENT);
    mesh.x_label_formatter(&|x| with_unit(*x)).y_label_formatter(&|y| with_unit(*y));
    done(mesh.label_style((FONT, 12)).axis_desc_style((FONT, 13)).draw())?;
    draw_series(&mut chart, lines)?;
    legend(&mut chart, SeriesLabelPosition::UpperLeft)
}

/// Formats the label of a logarithmic axis, with the suffixes k and M.
fn with_unit(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{} M", value / 1e6),
        _ if value >= 1e4 => format!("{} k", value / 1e3),
        // The logarithm of a label is not exact.
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

fn draw_series<'a, DB, X, Y>(
    chart: &mut ChartContext<'a, DB, Cartesian2d<X, Y>>,
    lines: &[Line],
) -> Result<()>
where
    DB: DrawingBackend + 'a,
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    for Line { name, points, color } in lines {
        let style = color.stroke_width(2);
        let drawn = done(chart.draw_series(LineSeries::new(points.iter().copied(), style)))?;
        drawn.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        if FEW_POINTS.contains(&points.len()) {
            done(chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, color.filled()))))?;
        }
    }
    Ok(())
}

pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// The minimum and the maximum of the measured values.
    pub(crate) range: Option<(f64, f64)>,
    pub(crate) paper: Option<f64>,
    pub(crate) color: RGBColor,
}

impl Bar {
    fn highest(&self) -> f64 {
        self.value.max(self.paper.unwrap_or(0.0)).max(self.range.map_or(0.0, |range| range.1))
    }
}

/// Draws a bar chart. Each bar shows its value and its range. A ring marks the value reported in
/// the paper.
pub(crate) fn bars(area: &Area<'_>, y: &str, bars: &[Bar]) -> Result<()> {
    let highest = bars.iter().map(Bar::highest).fold(0.0, f64::max);
    let labels: Vec<&str> = bars.iter().map(|bar| &*bar.label).collect();
    let mut chart = bar_chart(area, y, &labels, highest)?;
    for (place, bar) in (0..).zip(bars) {
        draw_bar(&mut chart, place, bar)?;
    }
    if bars.iter().any(|bar| bar.paper.is_some()) {
        let papers =
            (0..).zip(bars).filter_map(|(place, bar)| Some((SegmentValue::CenterOf(place), bar.paper?)));
        let drawn =
            done(chart.draw_series(papers.map(|point| Circle::new(point, 6, BLACK.stroke_width(2)))))?;
        drawn.label("the paper's").legend(|point| Circle::new(point, 6, BLACK.stroke_width(2)));
    }
    legend(&mut chart, SeriesLabelPosition::UpperRight)
}

/// A bar that consists of segments, the first one at the bottom.
pub(crate) struct Stack {
    pub(crate) label: String,
    pub(crate) segments: Vec<f64>,
}

/// Draws a chart of stacked bars. `names` are the names of the segments. The number above each bar
/// is the sum of its segments.
pub(crate) fn stacks(area: &Area<'_>, y: &str, names: &[&str], bars: &[Stack]) -> Result<()> {
    let sum = |bar: &Stack| bar.segments.iter().sum::<f64>();
    let highest = bars.iter().map(sum).fold(0.0, f64::max);
    let labels: Vec<&str> = bars.iter().map(|bar| &*bar.label).collect();
    let mut chart = bar_chart(area, y, &labels, highest)?;
    for (segment, name) in names.iter().enumerate() {
        let color = STACK_COLORS[segment % STACK_COLORS.len()];
        let rectangles = (0..).zip(bars).map(|(place, bar)| {
            let below: f64 = bar.segments[..segment].iter().sum();
            let corners = [
                (SegmentValue::Exact(place), below),
                (SegmentValue::Exact(place + 1), below + bar.segments[segment]),
            ];
            let mut rectangle = Rectangle::new(corners, color.filled());
            rectangle.set_margin(0, 0, 16, 16);
            rectangle
        });
        let drawn = done(chart.draw_series(rectangles))?;
        drawn
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()));
    }
    let sums = (0..).zip(bars).map(|(place, bar)| {
        let style = (FONT, 13).into_text_style(area).pos(Pos::new(HPos::Center, VPos::Bottom));
        Text::new(format!("{:.0}", sum(bar)), (SegmentValue::CenterOf(place), sum(bar)), style)
    });
    done(chart.draw_series(sums))?;
    legend(&mut chart, SeriesLabelPosition::UpperRight)
}

/// The chart that [`bar_chart`] returns. Each segment of the x axis contains one bar.
type BarChart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<SegmentedCoord<RangedCoordu32>, RangedCoordf64>>;

/// Draws the axes of a bar chart, with room above the highest bar.
fn bar_chart<'a, 'b>(area: &Area<'b>, y: &str, labels: &[&str], highest: f64) -> Result<BarChart<'a, 'b>> {
    let last = u32::try_from(labels.len())? - 1;
    let mut chart = done(
        ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(72)
            .build_cartesian_2d((0..last).into_segmented(), 0.0..1.12 * highest),
    )?;
    let label = |place: &SegmentValue<u32>| match place {
        SegmentValue::CenterOf(place) => labels.get(*place as usize).copied().unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().y_desc(y).x_labels(labels.len()).x_label_formatter(&label);
    mesh.light_line_style(TRANSPARENT);
    done(mesh.label_style((FONT, 12)).axis_desc_style((FONT, 13)).draw())?;
    Ok(chart)
}

/// Draws one bar with its range at the top and its value as text at the bottom.
fn draw_bar(chart: &mut BarChart<'_, '_>, place: u32, bar: &Bar) -> Result<()> {
    let middle = SegmentValue::CenterOf(place);
    let corners = [(SegmentValue::Exact(place), 0.0), (SegmentValue::Exact(place + 1), bar.value)];
    let mut rectangle = Rectangle::new(corners, bar.color.mix(0.8).filled());
    rectangle.set_margin(0, 0, 24, 24);
    done(chart.draw_series([rectangle]))?;
    let range = bar.range.map(|(least, most)| {
        ErrorBar::new_vertical(middle.clone(), least, bar.value, most, BLACK.filled(), 8)
    });
    done(chart.draw_series(range))?;
    let style = (FONT, 13).into_font().color(&BLACK);
    let text = EmptyElement::at((middle, 0.0)) + Text::new(number(bar.value), (-14, -16), style);
    done(chart.draw_series([text]))?;
    Ok(())
}

fn legend<'a, DB: DrawingBackend + 'a, CT: CoordTranslate>(
    chart: &mut ChartContext<'a, DB, CT>,
    position: SeriesLabelPosition,
) -> Result<()> {
    let mut labels = chart.configure_series_labels();
    labels.position(position).background_style(WHITE.mix(0.85));
    done(labels.border_style(COLORS[3]).label_font((FONT, 12)).draw())
}

/// Formats a number with three significant digits.
fn number(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Converts an error of the plotting library to `anyhow::Error`. The library's error is not `Send`.
fn done<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T> {
    result.map_err(|error| anyhow!("{error}")).context("cannot draw the plot")
}

const FONT: &str = "sans-serif";
const WIDTH: u32 = 900;
const TITLE_HEIGHT: u32 = 72;
const FEW_POINTS: Range<usize> = 3..30;
const SHORT_COMMIT: usize = 12;
