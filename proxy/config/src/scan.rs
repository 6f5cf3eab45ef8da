//! The line on which each value of a YAML document stands, and what the value tree cannot show:
//! repeated keys, tags, and documents too deep or too large once aliases are written out.
//!
//! It builds no values; `tree` does.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScanError, Span};

use super::lines::Lines;
use super::path::{Path, Segment};
use super::problem::{Problems, quote};

/// Nesting of maps and lists; the deepest key we know is six down.
const DEPTH_MAX: usize = 32;

/// Values in a document with its aliases written out, so that aliases of aliases cannot eat the memory.
const NODES_MAX: usize = 200_000;

/// Bytes of a key; names end at 260. Messages carry whole paths.
const KEY_BYTES_MAX: usize = 512;

/// What stops the reading of a document: its line and what is wrong.
pub(super) type Stop = (Option<usize>, String);

/// Reads the document's events.
///
/// Repeated keys go to `problems`; the rest of the document is still worth reading.
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
                return Err((
                    Some(span.start.line()),
                    "a second document begins here; write one only".into(),
                ));
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

/// A map or list that has begun and not ended.
struct Frame {
    lines: Lines,
    /// Where it goes in the one around it.
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
    /// In a map, before the value of this key, which began on this line.
    Value(String, usize),
}

struct Scan<'p> {
    problems: &'p Problems,
    frames: Vec<Frame>,
    root: Lines,
    /// Values under each finished anchor.
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
                    "an alias stands within its own anchor; write the value out".to_owned(),
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
                format!("more than {NODES_MAX} values with aliases written out; make it smaller"),
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
            let message =
                format!("the key {} is on line {line} again (first on line {first}); keep one", quote(text));
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

    /// The place of the value that begins now, and the line to report for it: that of its key if it has one.
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
            Place::Key => Err((Some(line), "a map, list or alias stands as a key; write text".into())),
        }
    }

    fn open(&mut self, place: Place, anchor: usize, line: usize) -> Result<(), Stop> {
        let nodes_before = self.nodes;
        self.count(1, line)?;
        if self.frames.len() >= DEPTH_MAX {
            return Err((
                Some(line),
                format!("more than {DEPTH_MAX} maps and lists within each other; flatten it"),
            ));
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
            // The first of repeated keys is the one that is read.
            (Some(frame), Some(segment)) => {
                frame.lines.children.entry(segment).or_insert(lines);
            }
            _ => self.root = lines,
        }
    }
}

fn refuse_tag(tagged: bool, line: usize) -> Result<(), Stop> {
    if tagged { Err((Some(line), "tags such as !name are not read; take it out".into())) } else { Ok(()) }
}
