//! Converts heads and trailers between sluice's encoders and readers and the types of the `h2` crate.

use ::http::header::{HeaderMap, HeaderName, HeaderValue};
use ::http::uri::{Authority, PathAndQuery, Scheme};
use ::http::{Method, Request, Response, StatusCode, Uri, Version};
use bytes::Bytes;
use sluice_http::{FieldBlock, Trailers};

/// The head of a response. `None` if it is invalid.
pub(super) fn response(head: &FieldBlock) -> Option<Response<()>> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(head.as_response()?).ok()?;
    fill(response.headers_mut(), head.bytes(), head.fields())?;
    Some(response)
}

/// The head of a request to a server that is reached by `scheme`. `None` if it is invalid, or if its target or host
/// cannot be expressed in HTTP/2.
pub(super) fn request(head: &FieldBlock, scheme: &Scheme) -> Option<Request<()>> {
    let [method, path_and_query, host] = head.as_request()?;
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(method).ok()?;
    *request.version_mut() = Version::HTTP_2;
    let uri = Uri::builder().scheme(scheme.clone());
    *request.uri_mut() = uri.authority(host).path_and_query(path_and_query).build().ok()?;
    fill(request.headers_mut(), head.bytes(), head.fields())?;
    Some(request)
}

/// Whether HTTP/2 can express this target and host: HTTP/1.1 allows bytes that no URI can contain.
pub(crate) fn can_say(target: &[u8], host: &[u8]) -> bool {
    PathAndQuery::try_from(target).is_ok() && Authority::try_from(host).is_ok()
}

/// Trailers. `None` if one of them is not a valid field.
pub(super) fn trailers(trailers: &Trailers) -> Option<HeaderMap> {
    let mut fields = HeaderMap::new();
    fill(&mut fields, trailers.bytes(), trailers.fields())?;
    Some(fields)
}

/// Names and values, in order.
pub(super) fn shown(fields: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}

/// Appends fields whose values are slices of `bytes`, so that all of them share one copy.
fn fill<'a>(
    map: &mut HeaderMap,
    bytes: &'a [u8],
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Option<()> {
    let copy = Bytes::copy_from_slice(bytes);
    // It would otherwise be built again when it has grown.
    map.try_reserve(fields.size_hint().0).ok()?;
    for (name, value) in fields {
        let start =
            (value.as_ptr() as usize).checked_sub(bytes.as_ptr() as usize).filter(|_| !value.is_empty());
        let value = copy.slice(start.map_or(0..0, |start| start..start + value.len()));
        let value = HeaderValue::from_maybe_shared(value).ok()?;
        map.try_append(HeaderName::from_bytes(name).ok()?, value).ok()?;
    }
    Some(())
}
