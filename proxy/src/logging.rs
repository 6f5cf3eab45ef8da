//! Sluice's own log, on standard error: text for a terminal, JSON for everything else. Not the access log.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use std::sync::Arc;

use tracing_subscriber::EnvFilter;

use crate::metrics::Metrics;

/// Starts logging at the level that `SLUICE_LOG` or else `RUST_LOG` names (`info` without either, or
/// when it cannot be read). A second call changes nothing.
pub fn init() {
    init_at("info");
}

/// The same with another level than `info` where neither variable is set.
pub fn init_at(level: &str) {
    let wanted =
        ["SLUICE_LOG", "RUST_LOG"].into_iter().find_map(|name| Some((name, std::env::var(name).ok()?)));
    let (filter, mistake) = filter(wanted.as_ref().map_or(level, |(_, value)| value));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = if std::io::stderr().is_terminal() {
        builder.with_target(false).try_init()
    } else {
        builder.json().flatten_event(true).try_init()
    };
    if let (Ok(()), Some(mistake), Some((name, _))) = (started, mistake, wanted) {
        tracing::warn!("{name} cannot be read, logging at info: {mistake}");
    }
}

/// The filter, and what was wrong if `info` stands in for it.
fn filter(wanted: &str) -> (EnvFilter, Option<String>) {
    match EnvFilter::try_new(wanted) {
        Ok(filter) if !wanted.trim().is_empty() => (filter, None),
        Ok(_) => (EnvFilter::new("info"), None),
        Err(error) => (EnvFilter::new("info"), Some(error.to_string())),
    }
}

/// Counts and logs every panic, in place of the text that Rust prints.
pub fn install_panic_hook(metrics: Arc<Metrics>) {
    std::panic::set_hook(Box::new(move |info| {
        metrics.count_panic();
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
    // Taken only when RUST_BACKTRACE asks for it.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    if tracing::dispatcher::has_been_set() {
        tracing::error!(location, thread, backtrace, "panic: {message}");
    } else {
        eprintln!("thread {thread} panicked at {location}: {message}");
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Mutex;

    use super::*;

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
    fn a_panic_is_counted_and_logged_once_with_its_place() {
        let (metrics, sink) = (Metrics::new(), Sink::default());
        let writer = sink.clone();
        let subscriber = tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
        let before = std::panic::take_hook();
        install_panic_hook(Arc::clone(&metrics));
        tracing::subscriber::with_default(subscriber, || {
            let result = std::panic::catch_unwind(|| panic!("at the disco"));
            assert!(result.is_err());
        });
        std::panic::set_hook(before);
        // Other tests may panic on purpose at the same time; this thread's own is among those counted.
        assert!(metrics.panics() >= 1);
        let text = String::from_utf8_lossy(&sink.0.lock().expect("not poisoned")).into_owned();
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).expect("a JSON line");
        assert_eq!(line["level"], "ERROR");
        assert_eq!(line["fields"]["message"], "panic: at the disco");
        assert!(line["fields"]["location"].as_str().is_some_and(|l| l.contains("logging.rs")));
    }

    #[test]
    fn an_unreadable_filter_falls_back_to_info() {
        assert_eq!(filter("debug,hyper=warn").1, None);
        let (fallback, mistake) = filter("a=b=c=d");
        assert_eq!(fallback.to_string(), "info");
        assert!(mistake.is_some());
        assert_eq!(filter("  ").0.to_string(), "info");
    }
}
