//! The fields of a head: a copy of the head's bytes, and the position of each name and value in them.

use std::mem::MaybeUninit;

use httparse::Header;

use super::connection::{BadConnection, ConnectionOptions};
use super::grammar::{members, trim_ows};
use super::kind::FieldKind;

/// Bytes of a field line in text form in addition to its name and value: colon, space, CR and LF.
pub(crate) const LINE_BYTES: usize = 4;

/// Slots for parsed fields on the stack. A head with a higher limit may need an allocation.
const SLOTS_ON_STACK: usize = 128;

/// The shortest field line, `a:` CRLF, in bytes.
const FIELD_LINE_BYTES_MIN: usize = 4;

/// Fields of a typical head, and their bytes. More fit, too.
pub(crate) const TYPICAL_FIELDS: usize = 16;
const TYPICAL_BYTES: usize = 512;

/// One field of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldRef<'a> {
    /// The name as received; a token.
    pub name: &'a [u8],
    /// The value without surrounding whitespace; no control byte except HTAB.
    pub value: &'a [u8],
    /// The kind of the field.
    pub kind: FieldKind,
}

/// A range of a head's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    start: usize,
    end: usize,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Span {
        Span { start, end }
    }

    pub(crate) const EMPTY: Span = Span { start: 0, end: 0 };

    /// The position of `part`, a slice of `whole`, in `whole`.
    pub(crate) fn of(whole: &[u8], part: &[u8]) -> Span {
        let start = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
        Span { start, end: start.wrapping_add(part.len()) }
    }

    /// Appends `part` to `whole` and returns its position there.
    pub(crate) fn append(whole: &mut Vec<u8>, part: &[u8]) -> Span {
        let start = whole.len();
        whole.extend_from_slice(part);
        Span { start, end: whole.len() }
    }

    pub(crate) fn range(self) -> std::ops::Range<usize> {
        self.start..self.end
    }

    /// The bytes; empty if the span does not fit `whole`.
    pub(crate) fn get(self, whole: &[u8]) -> &[u8] {
        whole.get(self.start..self.end).unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug)]
struct Field {
    name: Span,
    value: Span,
    kind: FieldKind,
}

/// A head's bytes and its fields in order. Reused from message to message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    /// The head as received, followed by parts that sluice rendered from it.
    pub(crate) bytes: Vec<u8>,
    list: Vec<Field>,
    /// The kinds present, as [`FieldKind::bit`]s.
    kinds: u64,
    pub(crate) connection: ConnectionOptions,
}

impl Fields {
    /// Copies `head` and drops the fields of the previous head.
    pub(crate) fn load(&mut self, head: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(head);
        self.list.clear();
        self.kinds = 0;
        self.connection = ConnectionOptions::default();
    }

    /// Records the fields that `parse` finds in the bytes, and returns what else it found.
    pub(crate) fn fill<T>(
        &mut self,
        headers_max: usize,
        parse: impl for<'h, 'b> FnOnce(&'b [u8], Slots<'h, 'b>) -> Parsed<'h, 'b, T>,
    ) -> Result<T, httparse::Error> {
        let Fields { bytes, list, kinds, .. } = self;
        // Never more slots than the bytes can fill, whatever the limit is.
        let slots = headers_max.min(bytes.len() / FIELD_LINE_BYTES_MIN + 1);
        with_slots(slots, |slots| {
            let (found, headers) = parse(bytes, slots)?;
            for header in headers {
                let name = header.name.as_bytes();
                let kind = FieldKind::of(name);
                *kinds |= kind.bit();
                let (name, value) = (Span::of(bytes, name), Span::of(bytes, trim_ows(header.value)));
                list.push(Field { name, value, kind });
            }
            Ok(found)
        })
    }

    /// Appends bytes that are part of no field.
    pub(crate) fn push_bytes(&mut self, part: &[u8]) -> Span {
        Span::append(&mut self.bytes, part)
    }

    /// Appends a field that arrived as a separate name and value, so nothing has to be parsed.
    pub(crate) fn push(&mut self, name: &[u8], value: &[u8]) -> FieldKind {
        let kind = FieldKind::of(name);
        self.kinds |= kind.bit();
        let (name, value) = (self.push_bytes(name), self.push_bytes(trim_ows(value)));
        self.list.push(Field { name, value, kind });
        kind
    }

    /// Makes room for a typical head. The length of one that arrives field by field is not known.
    pub(crate) fn reserve(&mut self) {
        self.bytes.reserve(TYPICAL_BYTES);
        self.list.reserve(TYPICAL_FIELDS);
    }

    /// Number of fields.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Reads the Connection fields. Call it once, after `fill`.
    pub(crate) fn read_connection(&mut self) -> Result<(), BadConnection> {
        let mut options = ConnectionOptions::default();
        for value in self.all(FieldKind::Connection) {
            options.add(value)?;
        }
        self.connection = options;
        Ok(())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = FieldRef<'_>> + Clone {
        self.list.iter().map(|field| FieldRef {
            name: field.name.get(&self.bytes),
            value: field.value.get(&self.bytes),
            kind: field.kind,
        })
    }

    pub(crate) fn has(&self, kind: FieldKind) -> bool {
        self.kinds & kind.bit() != 0
    }

    /// The values of this kind, in order. Costs nothing if there are none.
    pub(crate) fn all(&self, kind: FieldKind) -> impl Iterator<Item = &[u8]> {
        let list = if self.has(kind) { self.list.as_slice() } else { &[] };
        list.iter().filter(move |field| field.kind == kind).map(|field| field.value.get(&self.bytes))
    }

    pub(crate) fn first(&self, kind: FieldKind) -> Option<&[u8]> {
        self.all(kind).next()
    }

    /// The value of this kind, if there is exactly one such field.
    pub(crate) fn only(&self, kind: FieldKind) -> Option<&[u8]> {
        let mut values = self.all(kind);
        values.next().filter(|_| values.next().is_none())
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    }

    /// The names listed in Connection fields, in lower case.
    pub(crate) fn nominated(&self) -> impl Iterator<Item = Vec<u8>> {
        self.all(FieldKind::Connection).flat_map(members).map(<[u8]>::to_ascii_lowercase)
    }

    /// Whether a Connection field lists this name, which makes it hop-by-hop (RFC 9110 section 7.6.1).
    pub(crate) fn is_nominated(&self, name: &[u8]) -> bool {
        self.connection.nominates_any()
            && self
                .all(FieldKind::Connection)
                .flat_map(members)
                .any(|member| member.eq_ignore_ascii_case(name))
    }
}

/// Where httparse writes the fields it finds.
pub(crate) type Slots<'h, 'b> = &'h mut [MaybeUninit<Header<'b>>];

/// The result of the parser in addition to the fields, and the fields.
pub(crate) type Parsed<'h, 'b, T> = Result<(T, &'h [Header<'b>]), httparse::Error>;

fn with_slots<'b, R>(count: usize, run: impl FnOnce(Slots<'_, 'b>) -> R) -> R {
    let mut stack = [const { MaybeUninit::<Header<'b>>::uninit() }; SLOTS_ON_STACK];
    match stack.get_mut(..count) {
        Some(slots) => run(slots),
        None => run(&mut (0..count).map(|_| MaybeUninit::uninit()).collect::<Vec<_>>()),
    }
}
