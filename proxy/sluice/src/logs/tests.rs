//! Lines of each format, parsed, filtered and shown; files that grow, rotate and shrink.
#![allow(clippy::unwrap_used)]

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::filter::Statuses;
use super::line::Entry;
use super::*;

const JSON: &str = concat!(
    r#"{"time":"2026-11-21T10:00:00.042Z","request_id":"id-1","listener":"web","client":"192.0.2.7","#,
    r#""method":"GET","host":"example.com:81","target":"/a?b=c","protocol":"HTTP/1.1","status":502,"#,
    r#""endpoint":"127.0.0.1:3000","duration_ms":12.345,"queue_ms":2.000,"connect_ms":null,"#,
    r#""path":"copy","reason":"connect_refused"}"#
);
const LTSV: &str =
    "time:2026-11-21T10:00:00.042Z\tclient:2001:db8::1\tstatus:200\tduration_ms:1.500\treason:-";
const COMBINED: &str =
    r#"192.0.2.7 - - [21/Nov/2026:10:00:00 +0000] "GET /a\"b HTTP/1.1" 200 512 "-" "curl/8""#;

fn printer(filter: Filter, colours: bool) -> Printer<Vec<u8>> {
    Printer::new(Vec::new(), filter, colours)
}

fn shown(line: impl AsRef<[u8]>, filter: Filter, colours: bool) -> String {
    let mut printer = printer(filter, colours);
    printer.line(line.as_ref()).unwrap();
    String::from_utf8(printer.out().clone()).unwrap()
}

fn status(text: &str) -> Filter {
    Filter { status: text.split(',').map(|range| range.parse().unwrap()).collect(), ..Filter::default() }
}

#[test]
fn each_format_is_read() {
    let json = Entry::parse(JSON.as_bytes()).unwrap();
    assert_eq!((json.time.as_deref(), json.status), (Some("11-21 10:00:00.042"), Some(502)));
    assert_eq!((json.duration_ms, json.host.as_deref()), (Some(12.345), Some("example.com:81")));
    let ltsv = Entry::parse(LTSV.as_bytes()).unwrap();
    assert_eq!(
        (ltsv.client.as_deref(), ltsv.duration_ms, ltsv.reason),
        (Some("2001:db8::1"), Some(1.5), None)
    );
    let combined = Entry::parse(COMBINED.as_bytes()).unwrap();
    assert_eq!(
        (combined.time.as_deref(), combined.target.as_deref()),
        (Some("11-21 10:00:00"), Some(r#"/a\"b"#))
    );
    for garbage in
        ["", "{}", "{\"a\":1}", "{\"status\":200", "a\tb", "x:1\ty:2", "a - - [", "\u{1b}[2J", "1 2 3"]
    {
        assert_eq!(Entry::parse(garbage.as_bytes()), None, "{garbage}");
    }
    assert_eq!(Entry::parse(b"{\"host\":\"\xff\"}"), None);
}

#[test]
fn an_entry_is_one_aligned_line() {
    assert_eq!(
        shown(JSON, Filter::default(), false),
        "11-21 10:00:00.042 502 GET         12.3ms copy   127.0.0.1:3000        192.0.2.7       \
         example.com:81/a?b=c queue=2.0ms connect_refused id-1\n"
    );
    assert_eq!(
        shown(LTSV, Filter::default(), false),
        "11-21 10:00:00.042 200 -            1.5ms -      -                     2001:db8::1     -\n"
    );
    let coloured = shown(JSON, Filter::default(), true);
    assert!(coloured.contains("\x1b[1;31m502\x1b[0m") && coloured.contains("\x1b[31mconnect_refused\x1b[0m"));
    let mut plain = coloured;
    while let Some(at) = plain.find('\x1b') {
        let end = at + plain[at..].find('m').unwrap();
        plain.replace_range(at..=end, "");
    }
    assert_eq!(plain, shown(JSON, Filter::default(), false), "colours change nothing else");
}

#[test]
fn clients_cannot_control_the_terminal() {
    let hostile = JSON.replace("/a?b=c", "/\\u001b]0;x\\u0007\\u202e\\u009b");
    assert!(shown(&hostile, Filter::default(), false).contains("/\\x1b]0;x\\x07\u{fffd}\\x9b"));
    let garbage = shown(b"\x1b[2J \xff".as_slice(), Filter::default(), false);
    assert_eq!(garbage, "\\x1b[2J \u{fffd}\n");
    assert!(shown("x".repeat(5000), Filter::default(), false).len() < 1100);
    assert_eq!(shown("garbage", status("5xx"), false), "", "with a filter, other lines are not shown");
}

#[test]
fn all_filters_must_match() {
    let entry = Entry::parse(JSON.as_bytes()).unwrap();
    for (text, matches) in
        [("502", true), ("5xx", true), ("404,500-504", true), ("4xx", false), ("503", false)]
    {
        assert_eq!(status(text).matches(&entry), matches, "{text}");
    }
    for bad in ["", "x", "6xx", "99", "600", "504-500", "5x", "-"] {
        assert!(bad.parse::<Statuses>().is_err(), "{bad}");
    }
    let host = |host: &str| Filter { host: Some(host.into()), ..Filter::default() };
    for (wanted, matches) in [
        ("example.com", true),
        ("EXAMPLE.com:81", true),
        ("*.com", true),
        ("*.example.com", false),
        ("ample.com", false),
        ("example.com:82", false),
    ] {
        assert_eq!(host(wanted).matches(&entry), matches, "{wanted}");
    }
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let reason = |named: &[&str]| Filter { reason: words(named), ..Filter::default() };
    assert!(reason(&["any"]).matches(&entry) && reason(&["no_route", "connect_refused"]).matches(&entry));
    assert!(!reason(&["no_route"]).matches(&entry));
    let least = |ms| Filter { min_duration_ms: Some(ms), ..Filter::default() };
    assert!(least(12.345).matches(&entry) && !least(12.346).matches(&entry));
    let taken =
        |path: &str| Filter { path_taken: words(&[path]), path: Some("/a".into()), ..Filter::default() };
    assert!(taken("copy").matches(&entry) && !taken("direct").matches(&entry));
    let unknown = Entry::default();
    for filter in [status("5xx"), host("a"), reason(&["any"]), least(0.0), taken("copy")] {
        assert!(!filter.matches(&unknown), "{filter:?}");
    }
}

#[test]
fn colours_are_for_terminals_by_default() {
    use std::ffi::OsStr;
    for (when, terminal, no_color, colours) in [
        (When::Auto, true, None, true),
        (When::Auto, true, Some(""), true),
        (When::Auto, true, Some("1"), false),
        (When::Auto, false, None, false),
        (When::Always, false, Some("1"), true),
        (When::Never, true, None, false),
    ] {
        assert_eq!(
            when.colours(terminal, no_color.map(OsStr::new)),
            colours,
            "{when:?} {terminal} {no_color:?}"
        );
    }
}

/// A temporary file, removed when dropped.
struct Log(PathBuf);

impl Log {
    fn new(content: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sluice-logs-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::write(&path, content).unwrap();
        Self(path)
    }

    fn append(&self, text: &str) {
        OpenOptions::new().append(true).open(&self.0).unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn open(&self) -> File {
        File::open(&self.0).unwrap()
    }

    fn moved(&self) -> PathBuf {
        self.0.with_extension("1")
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_file(self.moved());
    }
}

fn last(content: &str, count: usize) -> String {
    let log = Log::new(content);
    let mut printer = printer(Filter::default(), false);
    source::last(&mut log.open(), count, u64::MAX, &mut printer).unwrap();
    String::from_utf8(printer.out().clone()).unwrap()
}

#[test]
fn the_last_lines_are_read_backwards() {
    assert_eq!(last("a\nb\nc\n", 2), "b\nc\n");
    assert_eq!(last("a\nb\n\nc", 2), "b\nc\n", "empty lines are skipped, and the last line needs no newline");
    assert_eq!(last("a\n", 0), "");
    assert_eq!(last("", 3), "");
    let long = "x".repeat(3 << 20);
    assert_eq!(last(&format!("a\n{long}\nb\n"), 3).lines().map(str::len).collect::<Vec<_>>(), [1, 1000, 1]);
}

#[test]
fn a_file_is_followed_through_rotation_and_truncation() {
    let log = Log::new("old\nhalf");
    let mut file = log.open();
    let position = source::end_of_lines(&mut file).unwrap();
    assert_eq!(position, 4);
    let mut follower = Follower::new(&log.0, file, position).unwrap();
    let mut printer = printer(Filter::default(), false);
    let mut read = |expected: &str| {
        follower.read(&mut printer).unwrap();
        assert_eq!(String::from_utf8(std::mem::take(printer.out())).unwrap(), expected);
    };
    read("");
    log.append(" whole\nne");
    read("half whole\n");
    log.append("xt\n");
    read("next\n");
    fs::rename(&log.0, log.moved()).unwrap();
    OpenOptions::new().append(true).open(log.moved()).unwrap().write_all(b"late\n").unwrap();
    read("late\n");
    OpenOptions::new().append(true).open(log.moved()).unwrap().write_all(b"later\ntorn").unwrap();
    fs::write(&log.0, "new\n").unwrap();
    read("later\ntorn\nnew\n");
    fs::write(&log.0, "c\n").unwrap();
    read("c\n");
    fs::remove_file(&log.0).unwrap();
    read("");
}

proptest! {
    #[test]
    fn reading_backwards_gives_the_same_lines(lines in prop::collection::vec(prop_oneof!["[a-z]{0,9}", Just("x".repeat(30_000))], 0..12), count in 0..14usize) {
        let content = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let wanted: Vec<&str> = lines.iter().map(|line| &line[..line.len().min(1000)]).filter(|line| !line.is_empty()).collect();
        let expected: String = wanted[wanted.len().saturating_sub(count)..].iter().map(|line| format!("{line}\n")).collect();
        prop_assert_eq!(last(&content, count), expected);
    }

    #[test]
    fn any_bytes_give_at_most_one_line(line in prop::collection::vec(any::<u8>(), 0..200), like in "(\\{\"status\":|status:|1 - - \\[)\\PC{0,40}") {
        for line in [&line[..], like.as_bytes()] {
            let shown = shown(line, Filter::default(), true);
            prop_assert!(shown.matches('\n').count() <= 1);
        }
    }
}
