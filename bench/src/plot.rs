//! Plots of a measured case as SVG: latency by percentile, and bars.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

use super::number::number;
use super::peers::PEERS;
use super::record::CaseRecord;
use super::stats::spread;

const SIZE: (u32, u32) = (860, 460);
/// Width for the names next to the latency plot.
const LEGEND: u32 = 140;
const FONT: &str = "sans-serif";
/// Percentiles of the axis: their position by number of nines, and their names.
const NINES: &[(f64, &str)] =
    &[(0.0, "0"), (0.301, "50"), (1.0, "90"), (2.0, "99"), (3.0, "99.9"), (4.0, "99.99")];
/// Distinguishable by the colour-blind, too (Okabe and Ito). direct is grey; sluice is first.
const COLOURS: &[RGBColor] = &[
    RGBColor(120, 120, 120),
    RGBColor(0, 114, 178),
    // Variants of sluice: darker and lighter.
    RGBColor(0, 54, 94),
    RGBColor(130, 175, 210),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    // HAProxy with other settings.
    RGBColor(120, 200, 170),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

type Root<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

/// A linear axis from zero with given ticks.
struct Axis {
    end: f64,
    ticks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (f64::from(to - from) * value / self.end).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().copied().filter(|tick| *tick <= self.end).collect()
    }

    fn range(&self) -> Range<f64> {
        0.0..self.end
    }
}

/// The files that [`draw`] creates for a case.
pub(super) fn files(case: &CaseRecord) -> Vec<String> {
    let mut files = vec![format!("{}-bars.svg", case.name)];
    if curves(case).iter().any(|(_, curve)| !curve.is_empty()) {
        files.push(format!("{}-latency.svg", case.name));
    }
    files
}

/// Draws them into `folder`.
///
/// # Errors
/// A file cannot be written.
pub(super) fn draw(case: &CaseRecord, folder: &Path) -> Result<()> {
    for file in files(case) {
        let path = folder.join(&file);
        let root = SVGBackend::new(&path, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|error| anyhow!("{file}: {error}"))?;
        let drawn = if file.ends_with("-bars.svg") { bars(case, &root) } else { latency(case, &root) };
        drawn.with_context(|| file.clone())?;
        root.present().map_err(|error| anyhow!("{file}: {error}"))?;
    }
    Ok(())
}

/// Each proxy has the same colour in every case.
fn colour(proxy: &str) -> RGBColor {
    let place = PEERS.iter().position(|(name, _)| *name == proxy).map_or(0, |place| place + 1);
    COLOURS[place % COLOURS.len()]
}

/// For each proxy, the median over rounds at each percentile: nines and milliseconds.
fn curves(case: &CaseRecord) -> Vec<(String, Vec<(f64, f64)>)> {
    let curve = |proxy: &String| {
        let first = case.of(proxy).next();
        let points = first.map(|sample| sample.latency_us.as_slice()).unwrap_or_default();
        let median = |percent: f64| {
            let of_rounds: Vec<f64> = case
                .of(proxy)
                .flat_map(|sample| &sample.latency_us)
                .filter_map(|(known, us)| (*known == percent).then_some(*us))
                .collect();
            // A logarithmic axis has no zero.
            spread(&of_rounds).map(|spread| (nines(percent), (spread.median / 1000.0).max(0.001)))
        };
        points.iter().filter_map(|(percent, _)| median(*percent)).collect()
    };
    case.proxies.iter().map(|proxy| (proxy.clone(), curve(proxy))).collect()
}

/// 90 is 1, 99 is 2, 99.9 is 3, so that the tail gets enough room.
fn nines(percent: f64) -> f64 {
    -(1.0 - percent / 100.0).max(1e-5).log10()
}

fn latency(case: &CaseRecord, root: &Root) -> Result<()> {
    let curves = curves(case);
    let points = || curves.iter().flat_map(|(_, curve)| curve);
    let low = points().map(|(_, ms)| *ms).fold(f64::MAX, f64::min) * 0.8;
    let high = points().map(|(_, ms)| *ms).fold(0.0, f64::max) * 1.25;
    let end = points().map(|(nines, _)| *nines).fold(1.0, f64::max) + 0.02;
    let mut chart = ChartBuilder::on(root)
        .caption(format!("{}: latency by percentile (median of rounds)", case.name), (FONT, 18))
        .margin(12)
        .margin_right(LEGEND)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(Axis { end, ticks: key_points() }, (low..high).log_scale())
        .map_err(|error| anyhow!("{error}"))?;
    chart
        .configure_mesh()
        .x_desc("percentile")
        .y_desc("milliseconds")
        .label_style((FONT, 14))
        .light_line_style(WHITE)
        .x_label_formatter(&|at| percentile_name(*at))
        .y_label_formatter(&|ms| format!("{}", (ms * 1000.0).round() / 1000.0))
        .draw()
        .map_err(|error| anyhow!("{error}"))?;
    for (i, (proxy, curve)) in curves.iter().enumerate() {
        let style = colour(proxy).stroke_width(2);
        chart
            .draw_series(LineSeries::new(curve.iter().copied(), style))
            .map_err(|error| anyhow!("{error}"))?;
        legend(root, i as i32, proxy, style).map_err(|error| anyhow!("{error}"))?;
    }
    Ok(())
}

/// Draws the legend next to the plot, where it covers no line.
fn legend<'a>(root: &Root<'a>, row: i32, proxy: &str, style: ShapeStyle) -> Drawn<'a> {
    let (x, y) = (SIZE.0 as i32 - LEGEND as i32 + 12, 56 + row * 22);
    root.draw(&PathElement::new([(x, y), (x + 18, y)], style))?;
    root.draw(&Text::new(proxy, (x + 24, y - 7), (FONT, 14)))
}

fn key_points() -> Vec<f64> {
    NINES.iter().map(|(at, _)| *at).collect()
}

fn percentile_name(at: f64) -> String {
    NINES
        .iter()
        .find(|(known, _)| (known - at).abs() < 1e-3)
        .map_or(String::new(), |(_, name)| (*name).to_owned())
}

/// The case's main figure: a bar to the median, a line from the minimum to the maximum.
fn bars(case: &CaseRecord, root: &Root) -> Result<()> {
    let figure = case.headline();
    let rows: Vec<_> =
        case.proxies.iter().filter_map(|proxy| Some((proxy, spread(&case.values(proxy, figure))?))).collect();
    let high = rows.iter().map(|(_, spread)| spread.max).fold(1.0, f64::max) * 1.08;
    let names: Vec<&str> = rows.iter().map(|(proxy, _)| proxy.as_str()).collect();
    let count = rows.len() as f64;
    let ticks = (0..rows.len()).map(|i| i as f64 + 0.5).collect();
    let mut chart = ChartBuilder::on(root)
        .caption(format!("{}: {} (bar: median, line: all rounds)", case.name, figure.label()), (FONT, 18))
        .margin(12)
        .margin_right(30)
        .x_label_area_size(42)
        .y_label_area_size(90)
        .build_cartesian_2d(0.0..high, Axis { end: count, ticks })
        .map_err(|error| anyhow!("{error}"))?;
    chart
        .configure_mesh()
        .x_desc(figure.label())
        .label_style((FONT, 14))
        .light_line_style(WHITE)
        .disable_y_mesh()
        .x_label_formatter(&|value| number(*value))
        .y_label_formatter(&|at| {
            names.get(names.len().wrapping_sub(1 + *at as usize)).unwrap_or(&"").to_string()
        })
        .draw()
        .map_err(|error| anyhow!("{error}"))?;
    for (i, (proxy, spread)) in rows.iter().enumerate() {
        let middle = count - i as f64 - 0.5;
        let bar = [(0.0, middle - 0.32), (spread.median, middle + 0.32)];
        let line = [(spread.min, middle), (spread.max, middle)];
        let fill = colour(proxy).filled();
        chart.draw_series([Rectangle::new(bar, fill)]).map_err(|error| anyhow!("{error}"))?;
        chart
            .draw_series([PathElement::new(line, BLACK.stroke_width(2))])
            .map_err(|error| anyhow!("{error}"))?;
    }
    Ok(())
}
