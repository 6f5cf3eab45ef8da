//! sluice's own log, on standard error: text for a terminal, otherwise JSON. Not the access log.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

/// Lines that may wait to be written; a start logs about thirty. Further lines are dropped and counted.
const LINES_MAX: usize = 4096;

/// When dropped, writes the pending lines, within a second.
static WRITER: Mutex<Option<WorkerGuard>> = Mutex::new(None);
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Starts logging at the level in `SLUICE_LOG` or else `RUST_LOG` (`info` if neither is set or the value is invalid). A
/// second call changes nothing.
pub fn init() {
    init_at("info");
}

/// As [`init`], with another default than `info` if neither variable is set.
pub fn init_at(level: &str) {
    let wanted =
        ["SLUICE_LOG", "RUST_LOG"].into_iter().find_map(|name| Some((name, std::env::var(name).ok()?)));
    let (filter, mistake) = filter(wanted.as_ref().map_or(level, |(_, value)| value));
    // A pipe that nobody reads, or a full disk, must not block a thread.
    let (lines, guard) =
        NonBlockingBuilder::default().buffered_lines_limit(LINES_MAX).lossy(true).finish(io::stderr());
    let dropped = lines.error_counter();
    let layer = fmt::layer()
        .with_writer(Lines(lines))
        // These errors would be printed to standard error, where they come from, and panic there.
        .log_internal_errors(false);
    let started = if io::stderr().is_terminal() {
        registry().with(layer.with_target(false).with_filter(filter)).try_init()
    } else {
        registry().with(layer.json().flatten_event(true).with_filter(filter)).try_init()
    };
    if started.is_ok() {
        let _ = DROPPED.set(dropped);
        WRITER.lock().unwrap_or_else(PoisonError::into_inner).replace(guard);
    }
    if let (Ok(()), Some(mistake), Some((name, _))) = (started, mistake, wanted) {
        tracing::warn!("{name} is invalid, logging at info: {mistake}");
    }
}

/// Writes pending lines, for at most a second. Call it last: nothing is logged afterwards.
pub fn end() {
    drop(WRITER.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Lines dropped because they were not written in time.
pub(crate) fn dropped_lines() -> u64 {
    DROPPED.get().map_or(0, |dropped| dropped.dropped_lines() as u64)
}

/// The log's output: one write per line.
struct Lines(NonBlocking);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(&self.0)
    }
}

struct Line<'a>(&'a NonBlocking);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = self.0.clone();
        // Bytes from a peer must not control a terminal or reorder a line.
        match String::from_utf8_lossy(bytes) {
            text if text.contains(steers) => lines.write_all(escaped(&text).as_bytes())?,
            _ => lines.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Control characters of Latin-1, and direction marks and line ends beyond ASCII.
pub(crate) fn steers(c: char) -> bool {
    matches!(c, '\u{7f}'..='\u{9f}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if steers(c) {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
        out
    })
}

/// The filter, and the error if `info` replaces an invalid one.
fn filter(wanted: &str) -> (Targets, Option<String>) {
    let info = || Targets::new().with_default(LevelFilter::INFO);
    match wanted.trim().parse::<Targets>() {
        Ok(filter) if !wanted.trim().is_empty() => (filter, None),
        Ok(_) => (info(), None),
        Err(error) => (info(), Some(error.to_string())),
    }
}

/// Logs every panic, after counting it, in place of the text that Rust prints.
pub fn install_panic_hook(count: impl Fn() + Send + Sync + 'static) {
    std::panic::set_hook(Box::new(move |info| {
        count();
        report(info);
    }));
}

fn report(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    let message = payload.downcast_ref::<&str>().copied().or(owned).unwrap_or("(no message)");
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    let current = std::thread::current();
    let thread = current.name().unwrap_or("(unnamed)");
    // Captured only when RUST_BACKTRACE requests it.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    if tracing::dispatcher::has_been_set() {
        tracing::error!(location, thread, backtrace, "panic: {message}");
    } else {
        let _ = writeln!(io::stderr(), "thread {thread} panicked at {location}: {message}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_panic_is_counted_and_logged_once_with_its_location() {
        let (panics, sink) = (Arc::new(AtomicU64::new(0)), Sink::default());
        let writer = sink.clone();
        let subscriber = tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
        let before = std::panic::take_hook();
        let counted = Arc::clone(&panics);
        install_panic_hook(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        tracing::subscriber::with_default(subscriber, || {
            let result = std::panic::catch_unwind(|| panic!("at the disco"));
            assert!(result.is_err());
        });
        std::panic::set_hook(before);
        // Other tests may panic on purpose at the same time; this thread's panic is among those counted.
        assert!(panics.load(Ordering::Relaxed) >= 1);
        let text = String::from_utf8_lossy(&sink.0.lock().expect("not poisoned")).into_owned();
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).expect("a JSON line");
        assert_eq!(line["level"], "ERROR");
        assert_eq!(line["fields"]["message"], "panic: at the disco");
        assert!(line["fields"]["location"].as_str().is_some_and(|l| l.contains("logging.rs")));
    }

    #[test]
    fn terminal_control_characters_are_escaped() {
        assert_eq!(escaped("a\u{9b}b\u{202e}c\u{e9}\n"), "a\\u009bb\\u202ec\u{e9}\n");
        assert!(!"plain \u{e9} \n \x1b".contains(steers));
    }

    #[test]
    fn an_invalid_filter_falls_back_to_info() {
        assert_eq!(filter("debug,hyper=warn").1, None);
        let (fallback, mistake) = filter("a=b=c=d");
        assert_eq!(fallback.to_string(), "info");
        assert!(mistake.is_some());
        assert_eq!(filter("  ").0.to_string(), "info");
    }
}
