//! How a value is read, written and described: one codec says all three, so that they cannot drift apart.

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde_yaml::Value;

use super::names::Word;
use super::out::Out;
use super::reader::{Fields, Item};
use super::shape::{Key, Shape};
use super::text::Check;

/// A way to write a value in YAML.
pub(super) trait Codec {
    /// What is read.
    type Value;

    /// The value, or `None` after a mistake has been reported.
    fn read(&self, item: &Item<'_>) -> Option<Self::Value>;

    /// Reads it over `value`, which stays as it is after a mistake.
    fn read_into(&self, value: &mut Self::Value, item: &Item<'_>) {
        if let Some(read) = self.read(item) {
            *value = read;
        }
    }

    /// The value as it is read, or `None` where its absence says it.
    fn write(&self, value: &Self::Value) -> Option<Value>;

    /// What may stand there.
    fn shape(&self) -> Shape;
}

/// A type whose keys are a table; made by `keys!`.
pub(super) trait Table: Default {
    /// Reads the keys that are given, each over what is there.
    fn read_keys(&mut self, fields: &mut Fields<'_>);

    /// Reports what is wrong between keys, and settles what one key leaves to another.
    fn settle(&mut self, fields: &mut Fields<'_>);

    /// Writes every key.
    fn write_keys(&self, out: &mut Out);

    /// The keys.
    fn keys() -> Vec<Key>;

    /// All of it as a value.
    fn written(&self) -> Value {
        let mut out = Out::default();
        self.write_keys(&mut out);
        out.done()
    }
}

/// A whole number within a range.
pub(super) struct Number<T>(RangeInclusive<u64>, PhantomData<T>);

/// A whole number within `range`.
pub(super) fn number<T>(range: RangeInclusive<u64>) -> Number<T> {
    Number(range, PhantomData)
}

impl<T: TryFrom<u64> + Into<Value> + Copy> Codec for Number<T> {
    type Value = T;

    fn read(&self, item: &Item<'_>) -> Option<T> {
        // Every range fits its type, but for usize on a 32-bit host.
        item.number(self.0.clone(), item.unit()).and_then(|number| T::try_from(number).ok())
    }

    fn write(&self, value: &T) -> Option<Value> {
        Some((*value).into())
    }

    fn shape(&self) -> Shape {
        Shape::Integer(*self.0.start(), *self.0.end())
    }
}

/// One of the words of a type.
pub(super) struct OneWord<T>(PhantomData<T>);

/// One of the words of a type.
pub(super) fn word<T>() -> OneWord<T> {
    OneWord(PhantomData)
}

impl<T: Word> Codec for OneWord<T> {
    type Value = T;

    fn read(&self, item: &Item<'_>) -> Option<T> {
        item.one_of()
    }

    fn write(&self, value: &T) -> Option<Value> {
        Some(value.word().into())
    }

    fn shape(&self) -> Shape {
        Shape::words(&T::ALL.iter().map(|word| word.word()).collect::<Vec<_>>())
    }
}

/// True or false.
pub(super) struct Flag;

impl Codec for Flag {
    type Value = bool;

    fn read(&self, item: &Item<'_>) -> Option<bool> {
        item.boolean()
    }

    fn write(&self, value: &bool) -> Option<Value> {
        Some((*value).into())
    }

    fn shape(&self) -> Shape {
        Shape::Boolean
    }
}

/// The path of a file or folder.
pub(super) struct File;

impl Codec for File {
    type Value = PathBuf;

    fn read(&self, item: &Item<'_>) -> Option<PathBuf> {
        item.text().map(PathBuf::from)
    }

    fn write(&self, value: &PathBuf) -> Option<Value> {
        Some(super::out::file(value))
    }

    fn shape(&self) -> Shape {
        Shape::TEXT
    }
}

/// Text that passes a check.
pub(super) struct Text {
    check: fn(&str) -> Check,
    is_lowered: bool,
}

/// Text that passes `check`.
pub(super) fn checked(check: fn(&str) -> Check) -> Text {
    Text { check, is_lowered: false }
}

/// The same, kept in lower case.
pub(super) fn lowered(check: fn(&str) -> Check) -> Text {
    Text { check, is_lowered: true }
}

impl Codec for Text {
    type Value = String;

    fn read(&self, item: &Item<'_>) -> Option<String> {
        let text = item.checked(self.check)?;
        Some(if self.is_lowered { text.to_ascii_lowercase() } else { text })
    }

    fn write(&self, value: &String) -> Option<Value> {
        Some(value.as_str().into())
    }

    fn shape(&self) -> Shape {
        Shape::TEXT
    }
}

/// A value that may be absent; its absence is not written.
pub(super) struct Optional<C>(pub(super) C);

impl<C: Codec> Codec for Optional<C> {
    type Value = Option<C::Value>;

    fn read(&self, item: &Item<'_>) -> Option<Self::Value> {
        self.0.read(item).map(Some)
    }

    fn write(&self, value: &Self::Value) -> Option<Value> {
        value.as_ref().and_then(|value| self.0.write(value))
    }

    fn shape(&self) -> Shape {
        self.0.shape()
    }
}

/// A value, or a word for its absence: `off` or `auto`.
pub(super) struct Or<C>(pub(super) &'static str, pub(super) C);

impl<C: Codec> Codec for Or<C> {
    type Value = Option<C::Value>;

    fn read(&self, item: &Item<'_>) -> Option<Self::Value> {
        match self.0 {
            "off" if item.is_off() => Some(None),
            word if item.value.as_str() == Some(word) => Some(None),
            _ => self.1.read(item).map(Some),
        }
    }

    fn write(&self, value: &Self::Value) -> Option<Value> {
        match value {
            Some(value) => self.1.write(value),
            None => Some(self.0.into()),
        }
    }

    fn shape(&self) -> Shape {
        Shape::AnyOf(vec![self.1.shape(), Shape::words(&[self.0])])
    }
}

/// A list, and how many it may have.
pub(super) struct List<C>(pub(super) usize, pub(super) C);

impl<C: Codec> Codec for List<C> {
    type Value = Vec<C::Value>;

    fn read(&self, item: &Item<'_>) -> Option<Self::Value> {
        Some(item.list(self.0).iter().filter_map(|item| self.1.read(item)).collect())
    }

    fn write(&self, value: &Self::Value) -> Option<Value> {
        Some(Value::Sequence(value.iter().filter_map(|value| self.1.write(value)).collect()))
    }

    fn shape(&self) -> Shape {
        Shape::list(self.1.shape(), self.0)
    }
}

/// A map whose keys are a table.
pub(super) struct Map<T>(PhantomData<T>);

/// A map whose keys are a table.
pub(super) const fn map<T>() -> Map<T> {
    Map(PhantomData)
}

impl<T: Table> Codec for Map<T> {
    type Value = T;

    fn read(&self, item: &Item<'_>) -> Option<T> {
        let mut value = T::default();
        self.read_into(&mut value, item);
        Some(value)
    }

    fn read_into(&self, value: &mut T, item: &Item<'_>) {
        let mut fields = item.fields();
        value.read_keys(&mut fields);
        value.settle(&mut fields);
        fields.finish();
    }

    fn write(&self, value: &T) -> Option<Value> {
        Some(value.written())
    }

    fn shape(&self) -> Shape {
        Shape::Map(T::keys())
    }
}

/// A value that is written in ways of its own.
pub(super) struct Own<T> {
    pub(super) read: fn(&Item<'_>) -> Option<T>,
    pub(super) write: fn(&T) -> Value,
    pub(super) shape: fn() -> Shape,
}

impl<T> Codec for Own<T> {
    type Value = T;

    fn read(&self, item: &Item<'_>) -> Option<T> {
        (self.read)(item)
    }

    fn write(&self, value: &T) -> Option<Value> {
        Some((self.write)(value))
    }

    fn shape(&self) -> Shape {
        (self.shape)()
    }
}

/// The shape of what a codec reads into a field of `T`, which says its type.
pub(super) fn shape_of<T, C: Codec>(codec: &C, _field: fn(&T) -> &C::Value) -> Shape {
    codec.shape()
}

/// Makes a type's table of keys: its default, the reading, the writing and the description of each come from one line.
///
/// `key: default, codec;` for each, then in `required` those with a word on what to write, and in `rest` the defaults of
/// what is read elsewhere. `settle` names a function that looks at all of them.
macro_rules! keys {
    ($type:ident $(, settle $settle:path)? {
        $($key:ident: $default:expr, $codec:expr;)*
    } $(required { $($needed:ident: $start:expr, $write:expr, $by:expr;)* })? $(rest { $($other:ident: $value:expr,)* })?) => {
        impl Default for $type {
            fn default() -> Self {
                Self { $($key: $default,)* $($($needed: $start,)*)? $($($other: $value,)*)? }
            }
        }

        impl $crate::codec::Table for $type {
            #[allow(unused_variables, reason = "of a table without keys")]
            fn read_keys(&mut self, fields: &mut $crate::reader::Fields<'_>) {
                use $crate::codec::Codec;
                $(if let Some(item) = fields.get(stringify!($key)) {
                    ($codec).read_into(&mut self.$key, &item);
                })*
                $($(if let Some(item) = fields.require(stringify!($needed), $write) {
                    ($by).read_into(&mut self.$needed, &item);
                })*)?
            }

            #[allow(unused_variables, reason = "of a table that needs none")]
            fn settle(&mut self, fields: &mut $crate::reader::Fields<'_>) {
                $($settle(self, fields);)?
            }

            fn write_keys(&self, out: &mut $crate::out::Out) {
                use $crate::codec::Codec;
                $($(out.put_some(stringify!($needed), ($by).write(&self.$needed));)*)?
                $(out.put_some(stringify!($key), ($codec).write(&self.$key));)*
            }

            fn keys() -> Vec<$crate::shape::Key> {
                use $crate::codec::shape_of;
                use $crate::shape::Key;
                vec![
                    $($(Key::required(stringify!($needed), shape_of(&$by, |it: &Self| &it.$needed)),)*)?
                    $(Key::optional(stringify!($key), shape_of(&$codec, |it: &Self| &it.$key)),)*
                ]
            }
        }
    };
}

pub(super) use keys;
