//! `compress` of a route and `compression` of the process: which responses are encoded, and what that may cost.

use super::codec::{List, keys, lowered, number, word};
use super::files::ContentCoding;
use super::names::words;
use super::problem::quote;
use super::reader::{Fields, Item};
use super::text;

/// Maximum number of media types or fields of one route.
const ITEMS_MAX: usize = 200;

/// The pattern of every type.
const ANY: &str = "*/*";
/// Media types that shrink, and that applications do not compress themselves.
const TYPES: [&str; 20] = [
    "text/*",
    "application/json",
    "application/*+json",
    "application/javascript",
    "application/x-javascript",
    "application/ecmascript",
    "application/xml",
    "application/*+xml",
    "application/graphql-response",
    "application/manifest",
    "application/wasm",
    "application/x-ndjson",
    "application/vnd.apple.mpegurl",
    "application/x-protobuf",
    "application/geo+json",
    "application/vnd.ms-fontobject",
    "font/ttf",
    "font/otf",
    "image/svg+xml",
    "image/bmp",
];

/// Which responses of a route are encoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Compress {
    /// Codings that are offered, by preference.
    pub algorithms: Vec<ContentCoding>,
    /// Bodies with a smaller length are not encoded, in bytes.
    pub body_bytes_min: u64,
    /// Media types, in lower case; `*` stands for any text.
    pub types: Vec<String>,
    /// How much work is put into it.
    pub level: CompressLevel,
    /// Fields of requests whose responses are not encoded, in lower case.
    pub skip_with: Vec<String>,
}

/// How much work is put into an encoded response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CompressLevel {
    /// The lowest level of each algorithm.
    Fast,
    /// The level at which the algorithm is mostly used for responses.
    Balanced,
    /// A level for responses that are sent once and read by many, from a cache.
    Best,
}

words!(CompressLevel {
    Fast = "fast",
    Balanced = "balanced",
    Best = "best",
});

/// What encoding may cost, over all routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compression {
    /// Memory of all streams that are being encoded, in bytes.
    pub memory_bytes_max: u64,
    /// The share of a worker's time, in percent.
    pub cpu_percent_max: u64,
}

keys! { Compress, settle consistent {
    algorithms: vec![ContentCoding::Zstd, ContentCoding::Brotli, ContentCoding::Gzip], List(3, word());
    // A smaller body travels in one packet with its head anyway.
    body_bytes_min: 1024, number(0..=1 << 30);
    types: TYPES.map(str::to_owned).to_vec(), List(ITEMS_MAX, lowered(media_type));
    level: CompressLevel::Balanced, word();
    skip_with: vec!["authorization".to_owned()], List(ITEMS_MAX, lowered(text::field_name));
}}

keys! { Compression {
    // Eighty responses of the largest kind at the same time, of all workers together.
    memory_bytes_max: 256 << 20, number(0..=1 << 40);
    // Beyond it, a worker works more for the size of responses than for the responses.
    cpu_percent_max: 50, number(1..=100);
}}

fn media_type(text: &str) -> text::Check {
    let fits = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+*".contains(&byte))
    };
    let stars = text.matches('*').count();
    match text.split_once('/') {
        _ if stars > 1 && text != ANY => {
            Err(format!("{} has more than one *; write one, or {ANY} for every type", quote(text)).into())
        }
        Some((kind, rest)) if fits(kind) && fits(rest) => Ok(()),
        _ => {
            Err(format!("{} is not a media type; write one such as text/html or text/*", quote(text)).into())
        }
    }
}

fn consistent(compress: &mut Compress, fields: &mut Fields<'_>) {
    for (key, what) in [("algorithms", "write zstd, br or gzip"), ("types", "write media types")] {
        let is_empty = |item: Item<'_>| item.value.as_sequence().is_some_and(Vec::is_empty);
        if fields.get(key).is_some_and(is_empty) {
            fields
                .problems
                .add(&fields.path.key(key), format!("the list is empty; {what}, or remove compress"));
        }
    }
    for (at, coding) in compress.algorithms.iter().enumerate() {
        if compress.algorithms[..at].contains(coding) {
            let path = fields.path.key("algorithms").index(at);
            fields.problems.add(&path, format!("{coding} is listed before; remove one"));
        }
    }
}

impl Compress {
    /// Whether bodies of this type, without its parameters, are encoded.
    pub fn takes(&self, media_type: &[u8]) -> bool {
        let media_type = media_type.to_ascii_lowercase();
        // gRPC has a field of its own for the coding of its messages.
        let is_grpc = media_type.starts_with(b"application/grpc");
        self.types.iter().any(|pattern| match pattern.split_once('*') {
            _ if pattern == ANY => !is_grpc,
            Some(_) if is_grpc => false,
            Some((before, after)) => {
                media_type.len() >= before.len() + after.len()
                    && media_type.starts_with(before.as_bytes())
                    && media_type.ends_with(after.as_bytes())
            }
            None => media_type == pattern.as_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_taken_by_name_or_pattern() {
        let compress = Compress::default();
        for taken in [
            "text/html",
            "TEXT/CSS",
            "application/json",
            "application/ld+json",
            "image/svg+xml",
            "text/event-stream",
        ] {
            assert!(compress.takes(taken.as_bytes()), "{taken}");
        }
        for left in [
            "image/png",
            "application/octet-stream",
            "application/grpc",
            "application/grpc+json",
            "",
            "text",
            "application/zip",
        ] {
            assert!(!compress.takes(left.as_bytes()), "{left}");
        }
        let any = Compress { types: vec!["*/*".to_owned()], ..Compress::default() };
        assert!(any.takes(b"image/png") && !any.takes(b"application/grpc"));
        assert!(media_type("*/*").is_ok() && media_type("*/*+json").is_err());
        assert!(
            media_type("text/*").is_ok()
                && media_type("text").is_err()
                && media_type("text/html; a=b").is_err()
        );
    }
}
