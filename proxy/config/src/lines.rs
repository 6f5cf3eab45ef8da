//! The line number of each value of a document.

use std::collections::HashMap;

use super::path::{Path, Segment};
use super::unit::is_same_key;

/// Line numbers by path.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) line: usize,
    pub(super) children: HashMap<Segment, Lines>,
}

impl Lines {
    /// The path with the key names that the document uses, with or without units.
    pub(super) fn as_written(&self, path: Path) -> Path {
        let mut node = Some(self);
        let written = path.0.into_iter().map(|segment| {
            let children = node.map(|node| &node.children);
            let found = children.filter(|children| !children.contains_key(&segment)).and_then(|children| {
                children.keys().find(|other| match (&segment, other) {
                    (Segment::Key(one), Segment::Key(other)) => is_same_key(one, other),
                    _ => false,
                })
            });
            let segment = found.cloned().unwrap_or(segment);
            node = children.and_then(|children| children.get(&segment));
            segment
        });
        Path(written.collect())
    }

    /// The line of the value, or of the nearest enclosing one; `None` for the document as a whole.
    pub(super) fn of(&self, path: &Path) -> Option<usize> {
        let mut node = self;
        for segment in &path.0 {
            match node.children.get(segment) {
                Some(child) => node = child,
                None => break,
            }
        }
        (node.line > 0).then_some(node.line)
    }
}
