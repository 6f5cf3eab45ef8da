//! How the responses of a resource are written to a file, and read back.
//!
//! A file has a magic number with the version of this format, a checksum of all that follows, the length of the description, the
//! description, and the bodies in the order of their responses.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use twox_hash::{XxHash3_64, XxHash3_128};

use crate::freshness::Times;
use crate::stored::{Rules, StoredResponse};
use crate::vary::Vary;

/// The last byte is the version.
const MAGIC: [u8; 8] = *b"sluice\x00\x01";
const CHECKSUM_AT: usize = MAGIC.len();
const LENGTH_AT: usize = CHECKSUM_AT + 8;
/// Bytes before the description.
pub(super) const HEADER_BYTES: usize = LENGTH_AT + 4;
/// The longest description: many variants, each with the largest head that is accepted.
const DESCRIPTION_BYTES_MAX: usize = 64 << 20;

/// The name of a resource's file. Two keys with the same hash replace each other's file; the key in it tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileName(pub(super) u128);

impl FileName {
    pub(crate) fn of(key: &[u8]) -> Self {
        Self(XxHash3_128::oneshot(key))
    }

    /// Its folder, and its name there.
    pub(super) fn parts(self) -> (String, String) {
        let mut folder = format!("{:032x}", self.0);
        let name = folder.split_off(2);
        (folder, name)
    }

    /// The other way round.
    pub(super) fn from_parts(folder: &str, name: &str) -> Option<Self> {
        let text = format!("{folder}{name}");
        let is_ours =
            folder.len() == 2 && text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_ours.then(|| u128::from_str_radix(&text, 16).ok()).flatten().map(Self)
    }
}

/// What a file says of its responses.
#[derive(Serialize, Deserialize)]
pub(super) struct Description {
    key: Vec<u8>,
    responses: Vec<ResponseRecord>,
}

#[derive(Serialize, Deserialize)]
struct ResponseRecord {
    status: u16,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    vary: Vary,
    times: Times,
    rules: Rules,
    body_bytes: u64,
}

impl ResponseRecord {
    fn of(stored: &StoredResponse) -> Self {
        let fields =
            stored.head().fields().filter(|field| !field.name.eq_ignore_ascii_case(b"content-length"));
        Self {
            status: stored.head().status(),
            fields: fields.map(|field| (field.name.to_vec(), field.value.to_vec())).collect(),
            vary: stored.vary.clone(),
            times: stored.times,
            rules: stored.rules,
            body_bytes: stored.body().len() as u64,
        }
    }

    fn response(self, body: Bytes) -> Option<StoredResponse> {
        let fields = self.fields.iter().map(|(name, value)| (&name[..], &value[..]));
        StoredResponse::new(self.status, fields, body.into(), (self.vary, self.times, self.rules))
    }
}

impl Description {
    /// The key of the resource.
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The responses, without their bodies.
    pub(super) fn heads(self) -> Option<Vec<StoredResponse>> {
        self.responses.into_iter().map(|record| record.response(Bytes::new())).collect()
    }
}

/// A file with the responses of a resource.
pub(super) fn encode<'s>(
    key: &[u8],
    responses: impl Iterator<Item = &'s StoredResponse> + Clone,
) -> Result<Vec<u8>, postcard::Error> {
    let description =
        Description { key: key.to_vec(), responses: responses.clone().map(ResponseRecord::of).collect() };
    let mut bytes = MAGIC.to_vec();
    bytes.extend([0; HEADER_BYTES - CHECKSUM_AT]);
    let mut bytes = postcard::to_extend(&description, bytes)?;
    let length =
        u32::try_from(bytes.len() - HEADER_BYTES).map_err(|_| postcard::Error::SerializeBufferFull)?;
    bytes[LENGTH_AT..HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
    responses.for_each(|stored| bytes.extend_from_slice(stored.body()));
    let checksum = XxHash3_64::oneshot(&bytes[LENGTH_AT..]);
    bytes[CHECKSUM_AT..LENGTH_AT].copy_from_slice(&checksum.to_le_bytes());
    Ok(bytes)
}

/// The responses of a resource; `None` if a byte is not as it was written, or if the file is about another resource.
pub(super) fn decode(bytes: Vec<u8>, key: &[u8]) -> Option<Vec<StoredResponse>> {
    let length = description_length(bytes.get(..HEADER_BYTES)?)?;
    let checksum = u64::from_le_bytes(bytes[CHECKSUM_AT..LENGTH_AT].try_into().ok()?);
    if checksum != XxHash3_64::oneshot(&bytes[LENGTH_AT..]) {
        return None;
    }
    let description = describe(bytes.get(HEADER_BYTES..HEADER_BYTES.checked_add(length)?)?)?;
    let mut bodies = Bytes::from(bytes).split_off(HEADER_BYTES + length);
    if description.key != key {
        return None;
    }
    let mut responses = Vec::new();
    for record in description.responses {
        let body_bytes = usize::try_from(record.body_bytes).ok().filter(|bytes| *bytes <= bodies.len())?;
        let body = bodies.split_to(body_bytes);
        responses.push(record.response(body)?);
    }
    bodies.is_empty().then_some(responses)
}

/// The length of the description, from the beginning of a file; `None` if it is no file of ours.
pub(super) fn description_length(header: &[u8]) -> Option<usize> {
    let length = header.get(LENGTH_AT..HEADER_BYTES)?.try_into().ok()?;
    let length = usize::try_from(u32::from_le_bytes(length)).ok()?;
    (header.starts_with(&MAGIC) && length <= DESCRIPTION_BYTES_MAX).then_some(length)
}

/// Reads a description, without a look at the checksum.
pub(super) fn describe(bytes: &[u8]) -> Option<Description> {
    postcard::from_bytes(bytes).ok()
}
