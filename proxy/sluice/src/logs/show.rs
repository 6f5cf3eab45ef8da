//! Formats an entry as one aligned line, with or without colours. Control sequences sent by clients do not reach the
//! terminal.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::filter::Filter;
use super::line::Entry;

/// A shorter time in the queue is not shown, in milliseconds.
const QUEUE_MS_SHOWN: f64 = 1.0;
/// Maximum bytes shown of a line that is not an entry.
const GARBAGE_BYTES_MAX: usize = 1000;

const RESET: &str = "\x1b[0m";
const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const BOLD_RED: &str = "\x1b[1;31m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const CYAN: &str = "\x1b[36m";

/// Shows the lines that pass a filter.
pub(super) struct Printer<W> {
    out: W,
    filter: Filter,
    colours: bool,
}

/// What is shown of a line.
enum Shown {
    Nothing,
    Entry(Box<Entry>),
    /// A line that is not an entry, shown only without filters.
    Garbage,
}

impl<W: Write> Printer<W> {
    pub(super) fn new(out: W, filter: Filter, colours: bool) -> Self {
        Self { out, filter, colours }
    }

    /// The output.
    pub(super) fn into_inner(self) -> W {
        self.out
    }

    /// Whether a line would be shown.
    pub(super) fn wants(&self, line: &[u8]) -> bool {
        !matches!(self.judge(line), Shown::Nothing)
    }

    /// Shows a line if it matches.
    pub(super) fn line(&mut self, line: &[u8]) -> io::Result<()> {
        let shown = match self.judge(line) {
            Shown::Nothing => return Ok(()),
            Shown::Entry(entry) => self.entry(&entry),
            Shown::Garbage => self.garbage(line),
        };
        writeln!(self.out, "{}", shown.trim_end())
    }

    fn judge(&self, line: &[u8]) -> Shown {
        match Entry::parse(line) {
            Some(entry) if self.filter.matches(&entry) => Shown::Entry(Box::new(entry)),
            None if self.filter.is_empty() && !line.trim_ascii().is_empty() => Shown::Garbage,
            _ => Shown::Nothing,
        }
    }

    /// The output.
    #[cfg(test)]
    pub(super) fn out(&mut self) -> &mut W {
        &mut self.out
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn entry(&self, entry: &Entry) -> String {
        let text = |field: &Option<String>| field.as_deref().map_or("-".to_owned(), printable);
        let status = entry.status.map_or("-".to_owned(), |status| status.to_string());
        let took = entry.duration_ms.map_or("-".to_owned(), |took| format!("{took:.1}ms"));
        let host = entry.host.as_deref().map(printable).unwrap_or_default();
        let mut line = String::new();
        self.put(&mut line, DIM, &format!("{:<18}", text(&entry.time)));
        self.put(&mut line, colour_of(entry.status), &format!("{status:>3}"));
        self.put(&mut line, "", &format!("{:<7}", text(&entry.method)));
        self.put(&mut line, "", &format!("{took:>10}"));
        self.put(&mut line, CYAN, &format!("{:<6}", text(&entry.path)));
        self.put(&mut line, DIM, &format!("{:<21}", text(&entry.endpoint)));
        self.put(&mut line, DIM, &format!("{:<15}", text(&entry.client)));
        self.put(&mut line, "", &format!("{host}{}", text(&entry.target)));
        if let Some(queue) = entry.queue_ms.filter(|queue| *queue >= QUEUE_MS_SHOWN) {
            self.put(&mut line, YELLOW, &format!("queue={queue:.1}ms"));
        }
        if let Some(reason) = &entry.reason {
            self.put(&mut line, RED, &printable(reason));
            if let Some(id) = &entry.request_id {
                self.put(&mut line, DIM, &printable(id));
            }
        }
        line
    }

    fn garbage(&self, line: &[u8]) -> String {
        let mut shown = String::new();
        let line = String::from_utf8_lossy(&line[..line.len().min(GARBAGE_BYTES_MAX)]);
        self.put(&mut shown, DIM, &printable(&line));
        shown
    }

    /// Appends a column and the space before it.
    fn put(&self, line: &mut String, colour: &str, text: &str) {
        if !line.is_empty() {
            line.push(' ');
        }
        if !self.colours || colour.is_empty() {
            line.push_str(text);
            return;
        }
        // The colour ends with the text, so that trailing spaces can be trimmed.
        let padding = text.len() - text.trim_end().len();
        let _ = write!(line, "{colour}{}{RESET}{:padding$}", text.trim_end(), "");
    }
}

fn colour_of(status: Option<u16>) -> &'static str {
    match status {
        Some(200..=299) => GREEN,
        Some(300..=399) => CYAN,
        Some(400..=499) => YELLOW,
        Some(500..) => BOLD_RED,
        _ => "",
    }
}

/// Text without characters that could control the terminal: control characters and marks that change the writing
/// direction.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                shown.push('\u{fffd}')
            }
            char if char.is_control() => {
                // Writing into a String cannot fail.
                let _ = write!(shown, "\\x{:02x}", u32::from(char));
            }
            char => shown.push(char),
        }
    }
    shown
}
