//! Which requests a stored response is for (RFC 9111 section 4.1).

use serde::{Deserialize, Serialize};
use sluice_http::{RequestHead, ResponseHead, is_same_name};

use super::asked::{Caller, RequestFacts};

/// Maximum number of fields that choose a response.
const FIELDS_MAX: usize = 16;

/// Fields of requests that chose a response, in lower case, each with its value in the request that it was for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Vary {
    /// How that request came.
    origin: Vec<u8>,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Vary {
    /// The fields that a response names. `None` if no other request is known to get the same: it names `*`, too many,
    /// or a field that the client does not write itself.
    pub(crate) fn of(asked: &RequestFacts<'_>, response: &ResponseHead) -> Option<Self> {
        let mut fields: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let lines = response.fields().filter(|field| field.name.eq_ignore_ascii_case(b"vary"));
        for name in lines.flat_map(|field| field.value.split(|byte| *byte == b',')) {
            let name = name.trim_ascii().to_ascii_lowercase();
            if name.is_empty() || (asked.is_dropped)(&name) || fields.iter().any(|(other, _)| *other == name)
            {
                continue;
            }
            if name == b"*" || (asked.is_ours)(&name) || fields.len() == FIELDS_MAX {
                return None;
            }
            let value = normal_value(asked.caller.request, &name);
            fields.push((name, value));
        }
        fields.sort_unstable();
        Some(Self { origin: asked.caller.origin.to_vec(), fields })
    }

    /// Whether a request came in the same way, and has the same values.
    pub(crate) fn fits(&self, caller: &Caller<'_>) -> bool {
        let is_same = |(name, value): &(Vec<u8>, Vec<u8>)| normal_value(caller.request, name) == *value;
        self.origin == caller.origin && self.fields.iter().all(is_same)
    }

    /// What a request has for these fields, as bytes: the same for all requests that get the same response.
    pub(crate) fn signature(&self, caller: &Caller<'_>) -> Vec<u8> {
        let mut bytes = caller.origin.to_vec();
        for (name, _) in &self.fields {
            bytes.push(0);
            bytes.extend(normal_value(caller.request, name));
        }
        bytes
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.origin.len()
            + self.fields.iter().map(|(name, value)| name.len() + value.len() + 48).sum::<usize>()
    }
}

/// The value of a field, with its lines joined and without spaces around commas. Some servers read an underscore in a
/// name as a dash. An absent field has another value than an empty one.
fn normal_value(request: &RequestHead, name: &[u8]) -> Vec<u8> {
    let mut normal = Vec::new();
    // Encodings, languages and media types have no case (RFC 9110 sections 8.3 to 8.5); of other values nobody knows.
    let folds = matches!(name, b"accept-encoding" | b"accept-language" | b"accept");
    for field in request.fields().filter(|field| is_same_name(field.name, name)) {
        for member in field.value.split(|byte| *byte == b',') {
            normal.push(b',');
            let member = member.trim_ascii();
            match folds {
                true => normal.extend(
                    member.iter().filter(|byte| !matches!(byte, b' ' | b'\t')).map(u8::to_ascii_lowercase),
                ),
                false => normal.extend_from_slice(member),
            }
        }
    }
    normal
}
