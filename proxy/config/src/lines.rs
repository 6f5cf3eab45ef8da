//! The line number of each value of a document.

use std::collections::HashMap;

use super::path::{Path, Segment};

/// Line numbers by path.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) line: usize,
    pub(super) children: HashMap<Segment, Lines>,
}

impl Lines {
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
