//! Keys and screens of every size, without a terminal.

#![allow(clippy::unwrap_used)]

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use sluice_control::fleet::{FleetView, MemberView};
use sluice_control::status::document::{
    Cluster, Document, Endpoint, Fixed, History, Latency, Paths, Rates, RecentError, Totals,
};

use super::app::{App, Next};
use super::draw::draw;
use super::rows::Column;
use super::text;

fn endpoint(label: &str, requests: f64, health: &str) -> Endpoint {
    let latency = Some(Latency { p50_ms: 1.5, p90_ms: 20.0, p99_ms: requests * 10.0 });
    let paths = Paths { copy: requests, ..Paths::default() };
    Endpoint {
        label: label.to_owned(),
        health: health.to_owned(),
        weight: 1,
        in_flight: 2,
        limit: Some(4),
        rates: Rates { requests, paths, latency, latency_10s: latency, ..Rates::default() },
        history: Some(History {
            requests: (0..120_u8).map(f32::from).collect(),
            p99_ms: vec![None; 120],
            ..History::default()
        }),
        ..Endpoint::default()
    }
}

fn document() -> Document {
    let endpoints = vec![endpoint("10.0.0.1:80", 7.0, "healthy"), endpoint("10.0.0.2:80", 90.0, "unhealthy")];
    let error = RecentError {
        time_ms: 3_723_000,
        reason: Some("connect_refused".to_owned()),
        side: "upstream".to_owned(),
        status: 502,
        route: Some("app".to_owned()),
        cluster: Some("puma".to_owned()),
        endpoint: None,
    };
    Document {
        state: "serving".to_owned(),
        fixed: Some(Fixed { version: "9.9".to_owned(), workers: 2, ..Fixed::default() }),
        totals: Totals { history: endpoints[0].history.clone(), ..Totals::default() },
        clusters: vec![Cluster { name: "puma".to_owned(), endpoints, ..Cluster::default() }],
        errors: vec![error; 50],
        ..Document::default()
    }
}

fn screen(app: &App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app)).unwrap();
    // An empty screen cannot be converted to text.
    if width == 0 || height == 0 { String::new() } else { terminal.backend().to_string() }
}

fn app() -> App {
    let mut app = App::default();
    app.take(Ok(document()));
    app
}

fn press(app: &mut App, code: KeyCode) -> Next {
    app.key(KeyEvent::new(code, KeyModifiers::NONE))
}

/// Labels from top to bottom.
fn order(app: &App) -> Vec<String> {
    app.rows().iter().map(|row| row.endpoint.label.clone()).collect()
}

#[test]
fn the_screen_shows_the_document() {
    let shown = screen(&app(), 130, 40);
    for text in [
        "sluice 9.9: serving",
        "10.0.0.1:80",
        "unhealthy",
        "2/4",
        "01:02:03Z  502 connect_refused  app > puma",
    ] {
        assert!(shown.contains(text), "{text} is missing in\n{shown}");
    }
}

#[test]
fn any_size_works() {
    let mut app = app();
    for detail in [false, true] {
        app.detail = detail;
        for width in [0, 1, 2, 19, 20, 79, 80, 200, 400] {
            for height in [0, 1, 2, 3, 5, 10, 17, 18, 24, 100] {
                screen(&app, width, height);
            }
        }
    }
    let mut empty = App::default();
    screen(&empty, 20, 5);
    empty.take(Err("nobody listens there".into()));
    assert!(screen(&empty, 80, 5).contains("nobody listens there"));
    empty.take(Ok(Document::default()));
    for code in [KeyCode::Down, KeyCode::End, KeyCode::Enter, KeyCode::Up] {
        press(&mut empty, code);
        screen(&empty, 80, 24);
    }
}

#[test]
fn keys_sort_and_pressing_again_reverses() {
    let mut app = app();
    assert_eq!(order(&app), ["10.0.0.1:80", "10.0.0.2:80"]);
    press(&mut app, KeyCode::Char('r'));
    assert_eq!(order(&app), ["10.0.0.2:80", "10.0.0.1:80"], "the busiest first");
    assert!(screen(&app, 120, 24).contains("REQ/Sv"));
    press(&mut app, KeyCode::Char('r'));
    assert_eq!(order(&app), ["10.0.0.1:80", "10.0.0.2:80"]);
    for column in Column::ALL {
        assert!(!"qjk".contains(column.key()), "the key of {column:?} is already used");
        press(&mut app, KeyCode::Char(column.key()));
        assert_eq!(app.sorted.unwrap().0, column, "each column has its own key");
    }
}

#[test]
fn the_cursor_stays_on_its_endpoint() {
    let mut app = app();
    let selected = |app: &App| app.rows()[app.cursor(&app.rows())].endpoint.label.clone();
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Down);
    assert_eq!(selected(&app), "10.0.0.2:80");
    press(&mut app, KeyCode::Char('r'));
    assert_eq!((selected(&app), app.cursor(&app.rows())), ("10.0.0.2:80".to_owned(), 0));
    press(&mut app, KeyCode::Enter);
    let shown = screen(&app, 100, 30);
    assert!(shown.contains("10.0.0.2:80 of puma  unhealthy") && shown.contains("p90 20 ms"), "{shown}");
    press(&mut app, KeyCode::End);
    assert!(screen(&app, 100, 30).contains("10.0.0.1:80 of puma"), "the cursor moves there too");
    assert_eq!(press(&mut app, KeyCode::Esc), Next::Go);
    assert!(!app.detail);
    app.take(Ok(Document::default()));
    assert_eq!(app.cursor(&app.rows()), 0, "its endpoint has gone");
    for code in [KeyCode::Esc, KeyCode::Char('q')] {
        assert_eq!(press(&mut app, code), Next::Quit);
    }
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(app.key(interrupt), Next::Quit);
}

#[test]
fn errors_are_shown_and_disappear() {
    let mut app = app();
    app.take(Err("nobody listens there".into()));
    let shown = screen(&app, 100, 30);
    assert!(shown.contains("nobody listens there") && shown.contains("10.0.0.1:80"), "{shown}");
    app.take(Ok(document()));
    assert!(!screen(&app, 100, 30).contains("nobody"));
}

#[test]
fn disabled_endpoints_are_shown_as_disabled() {
    let mut document = document();
    document.clusters[0].endpoints[0].disabled = true;
    assert!(text::table(&document).contains("10.0.0.1:80  disabled  "), "{}", text::table(&document));
    let mut app = app();
    app.take(Ok(document));
    press(&mut app, KeyCode::Enter);
    let shown = screen(&app, 100, 30);
    assert!(shown.contains("10.0.0.1:80 of puma  healthy, disabled"), "{shown}");
}

#[test]
fn the_plain_table_is_aligned() {
    let text = text::table(&document());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "sluice 9.9: serving, up 0 s, 2 workers");
    assert_eq!(
        lines[3..],
        [
            "CLUSTER  ENDPOINT     HEALTH     IN FLIGHT  REQ/S  ERRORS     P50     P99  SENT/S  PATHS",
            "puma     10.0.0.1:80  healthy          2/4    7.0       -  1.5 ms   70 ms     0 B  copy 7.0",
            "puma     10.0.0.2:80  unhealthy        2/4     90       -  1.5 ms  900 ms     0 B  copy 90",
        ]
    );
}

#[test]
fn the_members_of_the_fleet_are_shown_on_every_size() {
    let member =
        |name: &str| MemberView { name: name.to_owned(), applied: 3, settled: 3, ..MemberView::default() };
    let fleet = FleetView {
        engine: "etcd".to_owned(),
        version: 3,
        members: vec![member("web1"), member("web2")],
        ..FleetView::default()
    };
    let mut app = App::default();
    app.fleet = true;
    app.take(Ok(document()));
    assert!(screen(&app, 100, 30).contains("no member of a fleet"));
    app.take(Ok(Document { fleet: Some(fleet), ..document() }));
    let shown = screen(&app, 100, 30);
    assert!(
        shown.contains("2 members by etcd") && shown.contains("web2") && shown.contains("up to date"),
        "{shown}"
    );
    for (width, height) in [(1, 1), (20, 3), (200, 100)] {
        screen(&app, width, height);
    }
}
