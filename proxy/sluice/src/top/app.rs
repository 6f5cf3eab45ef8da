//! The state of the screen, and the effect of keys. Needs no terminal.

use crate::top::TopError;
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use sluice_control::status::Document;

use super::rows::{Column, Row, rows};

/// What happens after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Redraw and wait.
    Go,
    /// Quit.
    Quit,
}

/// The state of the screen.
#[derive(Default)]
pub(super) struct App {
    /// The last document, if there was one.
    pub(super) document: Option<Document>,
    /// Why there is no newer one.
    pub(super) trouble: Option<String>,
    /// The column that rows are sorted by, and whether the largest comes first; `None` keeps the configured order.
    pub(super) sorted: Option<(Column, bool)>,
    /// Cluster and endpoint under the cursor; the cursor follows them when rows move.
    selected: Option<(String, String)>,
    /// Whether only that endpoint is shown.
    pub(super) detail: bool,
    /// Whether the members of the fleet are shown.
    pub(super) fleet: bool,
}

impl App {
    /// Stores the result of a request.
    pub(super) fn take(&mut self, fetched: Result<Document, TopError>) {
        match fetched {
            Ok(document) => {
                self.document = Some(document);
                self.trouble = None;
            }
            Err(trouble) => self.trouble = Some(trouble.to_string()),
        }
    }

    /// The rows in order.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        self.document.as_ref().map(|document| rows(document, self.sorted)).unwrap_or_default()
    }

    /// The row of the cursor; the first one if its endpoint has gone.
    pub(super) fn cursor(&self, rows: &[Row<'_>]) -> usize {
        let wanted = self.selected.as_ref();
        let is_it = |row: &Row<'_>| {
            wanted.is_some_and(|(cluster, label)| row.cluster == cluster && row.endpoint.label == *label)
        };
        rows.iter().position(is_it).unwrap_or(0)
    }

    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Next {
        if key.kind == KeyEventKind::Release {
            return Next::Go;
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Next::Quit,
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left if self.detail => self.detail = false,
            KeyCode::Esc => return Next::Quit,
            KeyCode::Enter | KeyCode::Right => self.detail = true,
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::PageDown => self.step(10),
            KeyCode::PageUp => self.step(-10),
            KeyCode::Home => self.step(isize::MIN),
            KeyCode::End => self.step(isize::MAX),
            KeyCode::Char(letter) => self.sort(letter),
            _ => {}
        }
        Next::Go
    }

    fn step(&mut self, by: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let to = self.cursor(&rows).saturating_add_signed(by).min(last);
        let selected = rows.get(to).map(|row| (row.cluster.to_owned(), row.endpoint.label.clone()));
        self.selected = selected;
    }

    fn sort(&mut self, letter: char) {
        let Some(column) = Column::ALL.into_iter().find(|column| column.key() == letter) else { return };
        // Fixes the cursor to its endpoint, even if it was never moved.
        self.step(0);
        self.sorted = match self.sorted {
            Some((before, down)) if before == column => Some((column, !down)),
            _ => Some((column, column.is_number())),
        };
    }
}
