//! Draws the screen. Works with any size; parts that do not fit are left out.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row as Cells, Sparkline, Table, TableState};
use sluice_control::status::document::{Document, History, RecentError};

use super::app::App;
use super::format::{bytes, count, share, time};
use super::rows::{Column, Row, paths};
use super::text::{headline, numbers};
use crate::fleet_table;

/// Below this height, graphs and errors are not shown.
const HEIGHT_OF_MORE: u16 = 18;
/// Lines of recent errors.
const ERRORS: u16 = 6;

const SOFT: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, app: &App) {
    let area = frame.area();
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    head(frame, top, app);
    let rows = app.rows();
    match (&app.document, rows.get(app.cursor(&rows))) {
        (Some(document), _) if app.fleet => fleet(frame, middle, document),
        (Some(_), Some(row)) if app.detail => detail(frame, middle, row),
        (Some(document), _) => overview(frame, middle, app, document, &rows),
        (None, _) => {}
    }
    foot(frame, bottom, app);
}

fn head(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let lines = match (&app.document, &app.trouble) {
        (_, Some(trouble)) => {
            let text = Text::styled(trouble.as_str(), Style::new().fg(Color::Red));
            let wrap = ratatui::widgets::Wrap { trim: true };
            return frame.render_widget(Paragraph::new(text).wrap(wrap), area);
        }
        (Some(document), None) => {
            vec![Line::styled(headline(document), BOLD), Line::raw(numbers(document))]
        }
        (None, None) => vec![Line::raw("waiting for the admin listener")],
    };
    frame.render_widget(Paragraph::new(lines), area);
}

fn foot(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let keys = if app.fleet {
        "q quit".to_owned()
    } else if app.detail {
        "q quit  esc back  up/down other endpoint".to_owned()
    } else {
        let sorts = Column::ALL.map(|column| format!("{} {}", column.key(), column.title().to_lowercase()));
        format!("q quit  enter detail  sort: {}", sorts.join(", "))
    };
    frame.render_widget(Paragraph::new(Line::styled(keys, SOFT)), area);
}

/// The members of the fleet.
fn fleet(frame: &mut Frame<'_>, area: Rect, document: &Document) {
    let text = match document.fleet.as_ref().filter(|fleet| !fleet.engine.is_empty()) {
        Some(fleet) => fleet_table::table(fleet),
        None => "It is no member of a fleet, or the store has not answered yet.".to_owned(),
    };
    frame.render_widget(Paragraph::new(Text::raw(text)), area);
}

fn overview(frame: &mut Frame<'_>, area: Rect, app: &App, document: &Document, rows: &[Row<'_>]) {
    let more = area.height >= HEIGHT_OF_MORE;
    let (graph, errors) = if more { (4, ERRORS + 1) } else { (0, 0) };
    let [graphs, list, failed] =
        Layout::vertical([Constraint::Length(graph), Constraint::Fill(1), Constraint::Length(errors)])
            .areas(area);
    if more {
        if let Some(history) = &document.totals.history {
            totals(frame, graphs, history);
        }
        recent(frame, failed, &document.errors);
    }
    table(frame, list, app, rows);
}

fn totals(frame: &mut Frame<'_>, area: Rect, history: &History) {
    let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(2).areas(area);
    let p99: Vec<f32> = history.p99_ms.iter().map(|ms| ms.unwrap_or(0.0)).collect();
    graph(frame, left, "requests/s", &history.requests, |most| count(most.into()));
    graph(frame, right, "p99", &p99, |most| time(Some(most.into())));
}

/// A graph of the last values that fit, the newest on the right, with their maximum as text.
fn graph(frame: &mut Frame<'_>, area: Rect, name: &str, values: &[f32], say: fn(f32) -> String) {
    let [title, plot] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let fits = &values[values.len().saturating_sub(usize::from(plot.width))..];
    let most = fits.iter().copied().fold(0.0, f32::max);
    frame.render_widget(Line::styled(format!("{name}, max {}", say(most)), SOFT), title);
    // Sparklines take whole numbers, but fractions of milliseconds matter.
    let pad = usize::from(plot.width) - fits.len();
    let heights = fits.iter().map(|value| (f64::from(*value) * 1000.0) as u64);
    let data: Vec<u64> = std::iter::repeat_n(0, pad).chain(heights).collect();
    frame.render_widget(Sparkline::default().data(data).style(Style::new().fg(Color::Cyan)), plot);
}

fn health(word: &str) -> Style {
    match word {
        "healthy" => Style::new().fg(Color::Green),
        "draining" | "disabled" | "unchecked" => Style::new().fg(Color::Yellow),
        _ => BOLD.fg(Color::Red),
    }
}

fn table(frame: &mut Frame<'_>, area: Rect, app: &App, rows: &[Row<'_>]) {
    let columns = Column::fitting(area.width);
    let head = columns.iter().map(|column| {
        let column = *column;
        let arrow = match app.sorted {
            Some((by, true)) if by == column => "v",
            Some((by, false)) if by == column => "^",
            _ => "",
        };
        aligned(format!("{}{arrow}", column.title()), column, SOFT)
    });
    let body = rows.iter().map(|row| {
        Cells::new(columns.iter().map(|column| {
            let column = *column;
            let style = if column == Column::Health { health(row.state()) } else { Style::new() };
            aligned(row.cell(column), column, style)
        }))
    });
    let widths = columns.iter().map(|column| match column {
        Column::Endpoint => Constraint::Min(column.width()),
        _ => Constraint::Length(column.width()),
    });
    let table = Table::new(body, widths)
        .header(Cells::new(head))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected((!rows.is_empty()).then(|| app.cursor(rows)));
    frame.render_stateful_widget(table, area, &mut state);
}

fn aligned(text: String, column: Column, style: Style) -> Cell<'static> {
    let alignment = if column.is_number() { Alignment::Right } else { Alignment::Left };
    Cell::from(Text::from(text).alignment(alignment)).style(style)
}

fn recent(frame: &mut Frame<'_>, area: Rect, errors: &[RecentError]) {
    let mut lines = vec![Line::styled("recent errors", SOFT)];
    for error in errors.iter().take(usize::from(ERRORS)) {
        let place = [&error.route, &error.cluster, &error.endpoint];
        let place: Vec<&str> = place.into_iter().flatten().map(String::as_str).collect();
        let reason = error.reason.as_deref().unwrap_or("upstream error response");
        let color = if error.side == "downstream" { Style::new() } else { Style::new().fg(Color::Red) };
        lines.push(Line::from(vec![
            Span::raw(clock(error.time_ms)),
            Span::styled(format!("  {} {reason}  ", error.status), color),
            Span::raw(place.join(" > ")),
        ]));
    }
    if errors.is_empty() {
        lines.push(Line::raw("none"));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// Time of day in UTC, as in the access log.
fn clock(unix_ms: u64) -> String {
    let s = unix_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", s / 3600, s / 60 % 60, s % 60)
}

fn detail(frame: &mut Frame<'_>, area: Rect, row: &Row<'_>) {
    let endpoint = row.endpoint;
    let (rates, latency) = (&endpoint.rates, endpoint.rates.latency_10s);
    let limit = endpoint.limit.map_or("no limit".to_owned(), |limit| format!("limit {limit}"));
    let at = |pick: fn(&sluice_control::status::document::Latency) -> f64| time(latency.as_ref().map(pick));
    let facts = vec![
        Line::from(vec![
            Span::styled(format!("{} of {}  ", endpoint.label, row.cluster), BOLD),
            Span::styled(endpoint.health.as_str(), health(&endpoint.health)),
            Span::styled(if endpoint.disabled { ", disabled" } else { "" }, health("disabled")),
        ]),
        Line::raw(format!("last check: {}", endpoint.last_check.as_deref().unwrap_or("none"))),
        Line::raw(format!("weight {}, {} attempts failed", endpoint.weight, endpoint.failures)),
        Line::raw(format!("{} in flight, {} of them tunnels, {limit}", endpoint.in_flight, endpoint.tunnels)),
        Line::raw(format!("{} req/s, errors {}", count(rates.requests), share(rates.error_share_10s))),
        Line::raw(format!("p50 {}, p90 {}, p99 {}", at(|l| l.p50_ms), at(|l| l.p90_ms), at(|l| l.p99_ms))),
        Line::raw(format!("{}/s in, {}/s out", bytes(rates.bytes_in), bytes(rates.bytes_out))),
        Line::raw(format!("paths: {}", paths(rates.paths))),
    ];
    let [words, graphs] =
        Layout::vertical([Constraint::Length(facts.len() as u16 + 1), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Paragraph::new(facts), words);
    if let Some(history) = endpoint.history.as_ref().filter(|_| graphs.height >= 3) {
        totals(frame, graphs, history);
    }
}
