//! Configured changes to a head's fields. They are applied last, and never change framing or routing.

use super::cookie_scope::CookieScope;
use super::fields::{FieldRef, Fields};
use super::grammar::{is_field_value, is_token};
use super::kind::FieldKind;
use super::sink::HeadSink;

/// Changes to the fields of a forwarded head: first `remove`, then `set`, then `add`.
///
/// Names of hop-by-hop and framing fields, Host, and invalid fields are ignored here. The configuration should already
/// refuse them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldEdits {
    /// Names of fields to remove, in lower case.
    pub remove: Vec<Vec<u8>>,
    /// Fields to set in place of all fields of that name.
    pub set: Vec<(Vec<u8>, Vec<u8>)>,
    /// Fields to add to those of that name.
    pub add: Vec<(Vec<u8>, Vec<u8>)>,
    /// The lower-case name and the value of a field. If a response has it, nothing is added.
    pub unless: Option<(Vec<u8>, Vec<u8>)>,
    /// Rewrites the Set-Cookie fields of a response, but not those that are set or added here.
    pub cookies: Option<CookieScope>,
}

impl FieldEdits {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty() && self.cookies.is_none()
    }

    /// Whether fields of this name are removed, with or without a replacement. CGI, WSGI and Rack read an underscore as a
    /// dash, so `X_User` goes with `X-User`.
    pub fn takes_out(&self, name: &[u8]) -> bool {
        self.remove.iter().any(|other| is_same_name(name, other))
            || self.set.iter().any(|(other, value)| is_same_name(name, other) && is_writable(other, value))
    }

    /// Whether a field of this name is added.
    pub fn adds(&self, name: &[u8]) -> bool {
        self.add.iter().any(|(other, value)| name.eq_ignore_ascii_case(other) && is_writable(other, value))
    }

    /// Names that are removed, in lower case and with dashes.
    pub fn names_taken_out(&self) -> impl Iterator<Item = Vec<u8>> {
        let set = self.set.iter().filter(|(name, value)| is_writable(name, value)).map(|(name, _)| name);
        self.remove.iter().chain(set).map(|name| {
            name.iter().map(|byte| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() }).collect()
        })
    }

    /// The new value of a response's field, if it changes.
    pub(crate) fn rewritten(&self, field: &FieldRef<'_>) -> Option<Vec<u8>> {
        let cookies = self.cookies.as_ref().filter(|_| field.name.eq_ignore_ascii_case(b"set-cookie"));
        cookies?.rewrite(field.value)
    }

    /// Appends the fields to set and to add, for a head with these fields.
    pub(crate) fn render_to(&self, out: &mut impl HeadSink, fields: &Fields) {
        let withheld = self.unless.as_ref().is_some_and(|(name, value)| fields.get(name) == Some(value));
        let add = if withheld { &[][..] } else { &self.add };
        self.push_all(out, self.set.iter().chain(add));
    }

    /// Appends the fields to set and to add.
    pub fn render(&self, out: &mut (impl HeadSink + ?Sized)) {
        self.push_all(out, self.set.iter().chain(&self.add));
    }

    fn push_all<'a>(
        &self,
        out: &mut (impl HeadSink + ?Sized),
        fields: impl Iterator<Item = &'a (Vec<u8>, Vec<u8>)>,
    ) {
        for (name, value) in fields {
            if is_writable(name, value) {
                out.field(name, value);
            }
        }
    }
}

/// Whether two names are the same to an application that reads an underscore as a dash.
pub fn is_same_name(name: &[u8], other: &[u8]) -> bool {
    let folded = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.len() == other.len() && name.iter().map(folded).eq(other.iter().map(folded))
}

fn is_writable(name: &[u8], value: &[u8]) -> bool {
    is_token(name) && is_field_value(value) && !FieldKind::of(name).is_protected()
}
