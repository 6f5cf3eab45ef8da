//! Conditions on a request beyond its host and path, and the requests that a route leaves out.

use ipnet::IpNet;
use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

use super::codec::{List, Own, Table, checked, keys};
use super::general::NETWORK;
use super::out::Out;
use super::problem::quote;
use super::reader::Item;
use super::shape::{Key, Shape};
use super::text;
use super::text::Check;

/// Maximum number of items of one condition.
const ITEMS_MAX: usize = 1000;
/// Maximum bytes of one regular expression.
const PATTERN_BYTES_MAX: usize = 1000;
/// Maximum memory of the compiled expressions of all routes, in bytes. Thousands of ordinary ones fit.
const PATTERNS_BYTES_MAX: usize = 32 << 20;
/// Maximum depth of groups within groups.
const NESTING_MAX: u32 = 50;

/// All of these must hold; an empty one always does.
#[derive(Clone, Debug, PartialEq)]
pub struct Conditions {
    /// Names of the listeners that received the request.
    pub listeners: Vec<String>,
    /// Methods; GET includes HEAD.
    pub methods: Vec<String>,
    /// Fields of the request, all of them.
    pub headers: Vec<HeaderMatch>,
    /// Parameters of the query, all of them.
    pub query: Vec<ParameterMatch>,
    /// Networks of the client.
    pub client: Vec<IpNet>,
}

/// A request to which one of these applies is left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Exceptions {
    /// Paths, whole.
    pub path: Vec<String>,
    /// Path prefixes.
    pub path_prefix: Vec<String>,
    /// Regular expressions, searched in the path.
    pub path_regex: Vec<String>,
    /// As those of the route; here one that holds is enough.
    pub conditions: Conditions,
}

/// One field condition.
#[derive(Clone, Debug, PartialEq)]
pub struct HeaderMatch {
    /// Field name in lower case.
    pub name: String,
    /// Exact value; `None` only requires that the field is present.
    pub value: Option<String>,
}

/// One query condition.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterMatch {
    /// The parameter's name, decoded.
    pub name: String,
    /// Exact value, decoded; `None` only requires that the parameter is present.
    pub value: Option<String>,
}

keys! { Conditions {
    listeners: Vec::new(), List(ITEMS_MAX, checked(text::name));
    methods: Vec::new(), List(ITEMS_MAX, checked(text::method));
    headers: Vec::new(), List(ITEMS_MAX, HEADER);
    query: Vec::new(), List(ITEMS_MAX, PARAMETER);
    client: Vec::new(), List(ITEMS_MAX, NETWORK);
}}

keys! { Exceptions {
    path: Vec::new(), List(ITEMS_MAX, checked(|path| text::url_path(path, false)));
    path_prefix: Vec::new(), List(ITEMS_MAX, checked(|path| text::url_path(path, false)));
    path_regex: Vec::new(), List(ITEMS_MAX, checked(checked_pattern));
} rest {
    conditions: Conditions::default(),
}}

impl Conditions {
    /// How many there are: the listeners count as one, and so do the methods and the networks.
    pub fn count(&self) -> usize {
        let lists = [!self.listeners.is_empty(), !self.methods.is_empty(), !self.client.is_empty()];
        lists.into_iter().filter(|given| *given).count() + self.headers.len() + self.query.len()
    }
}

/// `not`, with the conditions among its keys.
pub(super) const NOT: Own<Exceptions> = Own {
    read: |item| {
        let mut fields = item.fields();
        let mut not = Exceptions::default();
        not.read_keys(&mut fields);
        not.conditions.read_keys(&mut fields);
        fields.finish();
        Some(not)
    },
    write: |not| {
        let mut out = Out::default();
        not.write_keys(&mut out);
        not.conditions.write_keys(&mut out);
        out.done()
    },
    shape: || Shape::Map([Exceptions::keys(), Conditions::keys()].concat()),
};

const HEADER: Own<HeaderMatch> = Own {
    read: |item| {
        let (name, value) = pair(item, "the name of a field", text::field_name)?;
        if let Some(value) = &value {
            text::field_value(value).map_err(|message| item.mistake(message)).ok()?;
        }
        Some(HeaderMatch { name: name.to_ascii_lowercase(), value })
    },
    write: |condition| written(&condition.name, condition.value.as_ref()),
    shape: pair_shape,
};

const PARAMETER: Own<ParameterMatch> = Own {
    read: |item| {
        let (name, value) = pair(item, "the name of a parameter", |_| Ok(()))?;
        Some(ParameterMatch { name, value })
    },
    write: |condition| written(&condition.name, condition.value.as_ref()),
    shape: pair_shape,
};

fn pair(item: &Item<'_>, write: &str, check: fn(&str) -> Check) -> Option<(String, Option<String>)> {
    let mut fields = item.fields();
    let name = fields.require("name", write).and_then(|item| item.checked(check));
    fields.refuse_null("value", "text");
    let value = fields.get("value").map(|item| item.any_text().map(str::to_owned));
    fields.finish();
    match value {
        // A mistake in it was reported.
        Some(None) => None,
        value => Some((name?, value.flatten())),
    }
}

fn written(name: &str, value: Option<&String>) -> serde_yaml::Value {
    let mut out = Out::default();
    out.put("name", name);
    out.put_some("value", value.cloned());
    out.done()
}

fn pair_shape() -> Shape {
    let value = Key::optional("value", Shape::Text { least: 0 });
    Shape::Map(vec![Key::required("name", Shape::TEXT), value])
}

/// One regular expression.
pub(super) fn checked_pattern(text: &str) -> Check {
    if text.len() > PATTERN_BYTES_MAX {
        return Err(format!(
            "an expression of {} bytes is too long; write at most {PATTERN_BYTES_MAX}",
            text.len()
        )
        .into());
    }
    match pattern(text) {
        Ok(_) => Ok(()),
        // The last line says what is wrong; those before it point at the place.
        Err(error) => {
            let text_of_error = error.to_string();
            let last = text_of_error.lines().last().unwrap_or_default();
            let reason = last.trim_start_matches("error: ");
            Err(format!("{} is not a regular expression: {reason}", quote(text)).into())
        }
    }
}

/// One regular expression. It matches bytes, because a path in its normal form may have any, and `.` matches each of them:
/// one that did not would let a request around a route.
///
/// # Errors
/// It is not valid, or takes too much memory.
pub fn pattern(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text)
        .unicode(false)
        .dot_matches_new_line(true)
        .size_limit(PATTERNS_BYTES_MAX)
        .nest_limit(NESTING_MAX)
        .build()
}

/// Regular expressions compiled together: one pass over a path tells which match. They take linear time.
///
/// # Errors
/// One is not valid, or all of them take too much memory. A part of those that compile together compiles, too.
pub fn patterns<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<RegexSet, regex::Error> {
    RegexSetBuilder::new(texts)
        .unicode(false)
        .dot_matches_new_line(true)
        .size_limit(PATTERNS_BYTES_MAX)
        .nest_limit(NESTING_MAX)
        .build()
}
