//! What a message says about caching: the directives of Cache-Control (RFC 9111 section 5.2), and of the fields that
//! speak to caches like this one alone (RFC 9213).

use sfv::{BareItem, Dictionary, ListEntry, Parser};
use sluice_http::{RequestHead, ResponseHead, is_token};

/// Fields that speak to caches in front of an application, the most particular first.
const TARGETED: [&[u8]; 1] = [b"cdn-cache-control"];

/// The longest time that is understood, in seconds (RFC 9111 section 1.2.2).
const LONGEST_S: u64 = 1 << 31;

/// The directives on which a shared cache acts.
///
/// Many fields: one for each directive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Directives {
    pub(crate) no_store: bool,
    /// Of the whole response, not of some of its fields.
    pub(crate) no_cache: bool,
    /// Fields that must not be stored, in lower case: `no-cache="set-cookie"`.
    pub(crate) without: Vec<Vec<u8>>,
    pub(crate) private: bool,
    pub(crate) public: bool,
    pub(crate) must_revalidate: bool,
    pub(crate) proxy_revalidate: bool,
    pub(crate) must_understand: bool,
    /// In seconds, like the times below.
    pub(crate) max_age: Option<u64>,
    pub(crate) shared_max_age: Option<u64>,
    pub(crate) stale_while_revalidate: Option<u64>,
    pub(crate) stale_if_error: Option<u64>,
    /// Whether a field for caches like this one has said it: Cache-Control and Expires are for others then.
    pub(crate) is_targeted: bool,
}

impl Directives {
    /// What a response says to this cache.
    pub(crate) fn of_response(head: &ResponseHead) -> Self {
        TARGETED.iter().find_map(|name| targeted(head, name)).unwrap_or_else(|| {
            let mut directives = Self::default();
            let fields = head.fields().filter(|field| field.name.eq_ignore_ascii_case(b"cache-control"));
            fields.for_each(|field| {
                members(field.value, |name, value| directives.take(name, value));
                // Nobody knows what would stand behind it.
                directives.no_store |= has_open_quote(field.value);
            });
            directives
        })
    }

    fn take(&mut self, name: &[u8], value: Option<&[u8]>) {
        match &name.to_ascii_lowercase()[..] {
            b"no-store" => self.no_store = true,
            b"no-cache" => {
                let before = self.without.len();
                self.without.extend(value.into_iter().flat_map(names));
                self.no_cache |= self.without.len() == before;
            }
            // With names of fields, the rest could be stored. Few write it, and a mistake would show it to others.
            b"private" => self.private = true,
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"max-age" => shortest(&mut self.max_age, value),
            b"s-maxage" => shortest(&mut self.shared_max_age, value),
            b"stale-while-revalidate" => shortest(&mut self.stale_while_revalidate, value),
            b"stale-if-error" => shortest(&mut self.stale_if_error, value),
            // Somebody has written `no-store; max-age=0`.
            name if !is_token(name) => {
                let says = |word: &[u8]| name.windows(word.len()).any(|part| part == word);
                self.no_store |= says(b"no-store") || says(b"private") || says(b"no-cache");
            }
            _ => {}
        }
    }

    /// How long the response may be used, in seconds, if it says so in a directive.
    pub(crate) fn lifetime(&self) -> Option<u64> {
        self.shared_max_age.or(self.max_age)
    }
}

/// What a request says of the response that it wants; a cache may disregard it (RFC 9111 section 5.2.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    pub(crate) no_store: bool,
    pub(crate) no_cache: bool,
    pub(crate) only_if_cached: bool,
    /// In seconds, like the times below.
    pub(crate) max_age: Option<u64>,
    pub(crate) min_fresh: Option<u64>,
    /// However old, without a value.
    pub(crate) max_stale: Option<u64>,
}

impl Wishes {
    pub(crate) fn of_request(head: &RequestHead) -> Self {
        let mut wishes = Self::default();
        let mut has_any = false;
        for field in head.fields().filter(|field| field.name.eq_ignore_ascii_case(b"cache-control")) {
            has_any = true;
            members(field.value, |name, value| wishes.take(name, value));
        }
        // RFC 9111 section 5.4: what clients wrote before Cache-Control.
        if !has_any && head.get(b"pragma").is_some_and(|value| value.eq_ignore_ascii_case(b"no-cache")) {
            wishes.no_cache = true;
        }
        wishes
    }

    fn take(&mut self, name: &[u8], value: Option<&[u8]>) {
        match &name.to_ascii_lowercase()[..] {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"max-age" => shortest(&mut self.max_age, value),
            b"min-fresh" => self.min_fresh = value.and_then(seconds),
            b"max-stale" => {
                self.max_stale = Some(value.map_or(LONGEST_S, |value| seconds(value).unwrap_or(0)))
            }
            _ => {}
        }
    }
}

/// RFC 9111 section 4.2.1: of several the shortest, and one that cannot be read is none at all.
fn shortest(time: &mut Option<u64>, value: Option<&[u8]>) {
    let read = value.and_then(seconds).unwrap_or(0);
    *time = Some(time.map_or(read, |before| before.min(read)));
}

/// A number of seconds (section 1.2.2): digits alone.
pub(crate) fn seconds(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let read = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
    is_number.then(|| read().map_or(LONGEST_S, |time| time.min(LONGEST_S)))
}

/// Names of fields in a list, in lower case.
fn names(list: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let names = list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    names.filter(|name| !name.is_empty()).map(<[u8]>::to_ascii_lowercase)
}

/// Shows each member of a list of directives: its name, and its value without quotes.
fn members(mut list: &[u8], mut show: impl FnMut(&[u8], Option<&[u8]>)) {
    while !list.is_empty() {
        let (member, rest) = list.split_at(end_of_member(list));
        list = rest.get(1..).unwrap_or_default();
        let member = member.trim_ascii();
        let equals = member.iter().position(|byte| *byte == b'=');
        let (name, value) = member.split_at(equals.unwrap_or(member.len()));
        let value = value.get(1..).map(|value| unquoted(value).into_owned());
        if !name.is_empty() {
            show(name, value.as_deref());
        }
    }
}

/// Where the first member of a list ends: a comma in quotes is part of it.
fn end_of_member(list: &[u8]) -> usize {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let ends = |byte: &u8| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => return true,
            _ => {}
        }
        false
    };
    list.iter().position(ends).unwrap_or(list.len())
}

fn has_open_quote(mut list: &[u8]) -> bool {
    loop {
        let (member, rest) = list.split_at(end_of_member(list));
        let Some((_, after)) = rest.split_first() else {
            let escaped = member.iter().filter(|byte| **byte == b'\\').count();
            return escaped == 0 && !member.iter().filter(|byte| **byte == b'"').count().is_multiple_of(2);
        };
        list = after;
    }
}

fn unquoted(value: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    match value {
        [b'"', inner @ .., b'"'] if inner.contains(&b'\\') => {
            let mut bytes = inner.iter();
            let mut plain = Vec::with_capacity(inner.len());
            while let Some(byte) = bytes.next() {
                plain.extend(if *byte == b'\\' { bytes.next() } else { Some(byte) });
            }
            plain.into()
        }
        [b'"', inner @ .., b'"'] => inner.into(),
        value => value.into(),
    }
}

/// What a field for this kind of cache says; `None` if there is none, or if it cannot be read (RFC 9213 section 2.1).
fn targeted(head: &ResponseHead, name: &[u8]) -> Option<Directives> {
    let lines = head.fields().filter(|field| field.name.eq_ignore_ascii_case(name));
    let text = lines.map(|field| field.value).collect::<Vec<_>>().join(&b", "[..]);
    let read: Dictionary =
        Parser::new(&text[..]).parse().ok().filter(|read: &Dictionary| !read.is_empty())?;
    let mut directives = Directives { is_targeted: true, ..Directives::default() };
    for (name, entry) in &read {
        let ListEntry::Item(item) = entry else { continue };
        match &item.bare_item {
            BareItem::Boolean(true) => directives.take(name.as_str().as_bytes(), None),
            BareItem::Integer(number) => {
                directives.take(name.as_str().as_bytes(), Some(number.to_string().as_bytes()));
            }
            BareItem::String(text) => {
                directives.take(name.as_str().as_bytes(), Some(text.as_str().as_bytes()));
            }
            // Of a type that no directive has (section 2.1): as if it were absent.
            _ => {}
        }
    }
    Some(directives)
}
