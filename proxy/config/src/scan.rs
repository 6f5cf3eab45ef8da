//! The line of each value of a YAML document, and what the value tree cannot show: repeated keys, tags, and documents
//! that are too deep, or too large once aliases are expanded.
//!
//! Builds no values; `tree` does.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScanError, Span};

use super::lines::Lines;
use super::path::{Path, Segment};
use super::problem::{Problems, quote};

/// Maximum nesting of maps and lists; the deepest known key is at six.
const DEPTH_MAX: usize = 32;

/// Maximum number of values with aliases expanded, so that nested aliases cannot exhaust memory.
const NODES_MAX: usize = 200_000;

/// Maximum bytes of a key; names have at most 260. Messages contain whole paths.
const KEY_BYTES_MAX: usize = 512;

/// An error that stops reading a document: its line, and what is wrong.
pub(super) type Stop = (Option<usize>, String);

/// Reads the document's events.
///
/// Repeated keys go to `problems`, because the rest of the document can still be checked.
pub(super) fn scan(text: &str, problems: &Problems) -> Result<Lines, Stop> {
    let mut scan =
        Scan { problems, frames: Vec::new(), root: Lines::default(), sizes: HashMap::new(), nodes: 0 };
    let mut documents = 0;
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| syntax_error(&error))?;
        if matches!(event, Event::DocumentStart(_)) {
            documents += 1;
            if documents > 1 {
                return Err((Some(span.start.line()), "a second document starts here; keep only one".into()));
            }
        }
        scan.event(event, span)?;
    }
    Ok(scan.root)
}

fn syntax_error(error: &ScanError) -> Stop {
    let hint = if error.info().contains("unknown anchor") {
        "; put a value that begins with * in quotes"
    } else if error.info().contains("tab") {
        "; indent with spaces"
    } else {
        ""
    };
    let marker = error.marker();
    (Some(marker.line()), format!("column {}: not YAML: {}{hint}", marker.col() + 1, error.info()))
}

/// A map or list that has started but not ended.
struct Frame {
    lines: Lines,
    /// Its position in the enclosing map or list.
    segment: Option<Segment>,
    place: Place,
    anchor: usize,
    nodes_before: usize,
}

enum Place {
    /// In a list, before the item of this index.
    Item(usize),
    /// In a map, before a key.
    Key,
    /// In a map, before the value of this key, which started on this line.
    Value(String, usize),
}

struct Scan<'p> {
    problems: &'p Problems,
    frames: Vec<Frame>,
    root: Lines,
    /// Number of values under each finished anchor.
    sizes: HashMap<usize, usize>,
    nodes: usize,
}

impl Scan<'_> {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Stop> {
        let line = span.start.line();
        match event {
            Event::Scalar(text, _, anchor, tag) => {
                refuse_tag(tag.is_some(), line)?;
                self.count(1, line)?;
                self.sizes.insert(anchor, 1);
                self.scalar(&text, line)
            }
            Event::Alias(anchor) => {
                let size = self.sizes.get(&anchor).copied();
                let size = size.ok_or((
                    Some(line),
                    "an alias refers to its own anchor; write the value out".to_owned(),
                ))?;
                self.count(size, line)?;
                self.leaf(line)
            }
            Event::SequenceStart(anchor, tag) => {
                refuse_tag(tag.is_some(), line)?;
                self.open(Place::Item(0), anchor, line)
            }
            Event::MappingStart(anchor, tag) => {
                refuse_tag(tag.is_some(), line)?;
                self.open(Place::Key, anchor, line)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.close();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn count(&mut self, nodes: usize, line: usize) -> Result<(), Stop> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > NODES_MAX {
            return Err((
                Some(line),
                format!("more than {NODES_MAX} values with aliases expanded; make it smaller"),
            ));
        }
        Ok(())
    }

    fn scalar(&mut self, text: &str, line: usize) -> Result<(), Stop> {
        let Some(Frame { place: place @ Place::Key, lines, .. }) = self.frames.last_mut() else {
            return self.leaf(line);
        };
        if text.len() > KEY_BYTES_MAX {
            return Err((Some(line), format!("a key has more than {KEY_BYTES_MAX} bytes; shorten it")));
        }
        *place = Place::Value(text.to_owned(), line);
        if let Some(first) = lines.children.get(&Segment::Key(text.to_owned())) {
            let first = first.line;
            let message = format!(
                "the key {} is repeated on line {line} (first on line {first}); keep one",
                quote(text)
            );
            self.problems.add(&self.path().key(text), message);
        }
        Ok(())
    }

    /// The path of the innermost open map or list.
    fn path(&self) -> Path {
        Path(self.frames.iter().filter_map(|frame| frame.segment.clone()).collect())
    }

    fn leaf(&mut self, line: usize) -> Result<(), Stop> {
        let (segment, line) = self.next(line)?;
        self.attach(segment, Lines { line, children: HashMap::new() });
        Ok(())
    }

    /// The position of the value that starts now, and its line: that of its key if it has one.
    fn next(&mut self, line: usize) -> Result<(Option<Segment>, usize), Stop> {
        let Some(frame) = self.frames.last_mut() else {
            return Ok((None, 0));
        };
        match std::mem::replace(&mut frame.place, Place::Item(0)) {
            Place::Item(index) => {
                frame.place = Place::Item(index + 1);
                Ok((Some(Segment::Index(index)), line))
            }
            Place::Value(key, key_line) => {
                frame.place = Place::Key;
                Ok((Some(Segment::Key(key)), key_line))
            }
            Place::Key => Err((Some(line), "a map, list or alias is used as a key; write text".into())),
        }
    }

    fn open(&mut self, place: Place, anchor: usize, line: usize) -> Result<(), Stop> {
        let nodes_before = self.nodes;
        self.count(1, line)?;
        if self.frames.len() >= DEPTH_MAX {
            return Err((Some(line), format!("more than {DEPTH_MAX} nested maps and lists; flatten it")));
        }
        let (segment, line) = self.next(line)?;
        let lines = Lines { line, children: HashMap::new() };
        self.frames.push(Frame { lines, segment, place, anchor, nodes_before });
        Ok(())
    }

    fn close(&mut self) {
        if let Some(frame) = self.frames.pop() {
            self.sizes.insert(frame.anchor, self.nodes - frame.nodes_before);
            self.attach(frame.segment, frame.lines);
        }
    }

    fn attach(&mut self, segment: Option<Segment>, lines: Lines) {
        match (self.frames.last_mut(), segment) {
            // The value of the first of repeated keys is used.
            (Some(frame), Some(segment)) => {
                frame.lines.children.entry(segment).or_insert(lines);
            }
            _ => self.root = lines,
        }
    }
}

fn refuse_tag(tagged: bool, line: usize) -> Result<(), Stop> {
    if tagged { Err((Some(line), "tags such as !name are not supported; remove it".into())) } else { Ok(()) }
}
