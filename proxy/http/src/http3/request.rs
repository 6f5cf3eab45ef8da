//! The head of a request (RFC 9114 sections 4.1.2 and 4.3.1).
//!
//! Its content is checked in the same place as that of HTTP/1.1. Only what no other version can express is refused here.

use super::fields::{FieldSection, is_lower_name};
use crate::assemble::{RequestParts, StreamFraming};
use crate::error::ParseError;
use crate::method::Version;
use crate::request::RequestHead;
use crate::scan::HeadLimits;

/// The head is malformed: a stream error of type H3_MESSAGE_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The head of a request from a client.
#[derive(Clone, Debug)]
pub struct Http3Request {
    section: FieldSection,
    framing: StreamFraming,
    /// The declared length of the body, if it is a number.
    length: Option<u64>,
}

/// The pseudo-header fields.
#[derive(Clone, Copy, Default)]
struct Pseudo<'a> {
    method: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
    authority: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
    protocol: Option<&'a [u8]>,
}

impl<'a> Pseudo<'a> {
    /// Those of a head. Each may be there once, and none after a field.
    fn of(section: &'a FieldSection) -> Result<Self, Malformed> {
        let (mut pseudo, mut has_fields) = (Self::default(), false);
        for (name, value) in section.iter() {
            if name.first() != Some(&b':') {
                has_fields = true;
                if !is_lower_name(name) {
                    return Err(Malformed);
                }
                continue;
            }
            let place = match name {
                b":method" => &mut pseudo.method,
                b":scheme" => &mut pseudo.scheme,
                b":authority" => &mut pseudo.authority,
                b":path" => &mut pseudo.path,
                b":protocol" => &mut pseudo.protocol,
                _ => return Err(Malformed),
            };
            if has_fields || place.replace(value).is_some() {
                return Err(Malformed);
            }
        }
        Ok(pseudo)
    }

    /// Whether what belongs together is there, and nothing else.
    fn is_complete(&self) -> bool {
        match (self.method, self.protocol) {
            (Some(b"CONNECT"), None) => {
                self.authority.is_some() && self.scheme.is_none() && self.path.is_none()
            }
            // RFC 9220 and RFC 8441 section 4.
            (Some(b"CONNECT"), Some(_)) => self.authority.is_some() && self.has_target(b"CONNECT"),
            (Some(method), None) => self.has_target(method),
            (None, _) | (Some(_), Some(_)) => false,
        }
    }

    fn has_target(&self, method: &[u8]) -> bool {
        let is_known =
            |scheme: &[u8]| scheme.eq_ignore_ascii_case(b"https") || scheme.eq_ignore_ascii_case(b"http");
        self.scheme.is_some_and(is_known)
            && match self.path {
                Some([b'/', ..]) => true,
                Some(b"*") => method == b"OPTIONS",
                _ => false,
            }
    }
}

impl Http3Request {
    /// Rejects what no HTTP/1.1 head can express, and determines how the rest is to be read. `ended` means that there is
    /// no rest.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn check(section: FieldSection, ended: bool) -> Result<Self, Malformed> {
        let pseudo = Pseudo::of(&section)?;
        if !pseudo.is_complete() {
            return Err(Malformed);
        }
        let declared = section.iter().find(|(name, _)| *name == b"content-length").map(|(_, value)| value);
        let is_websocket =
            pseudo.protocol.is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"));
        let framing = match (pseudo.method, pseudo.protocol, declared) {
            (_, Some(_), Some(_)) => return Err(Malformed),
            (_, Some(_), None) if is_websocket => StreamFraming::Tunnel,
            // What follows is not a message, and the tunnel is refused because of its head.
            (Some(b"CONNECT"), _, _) => StreamFraming::None,
            _ if ended => StreamFraming::None,
            (_, _, Some(_)) => StreamFraming::Length,
            (_, _, None) => StreamFraming::Stream,
        };
        let length = declared.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        if framing == StreamFraming::None && length.is_some_and(|length| length > 0) && ended {
            return Err(Malformed);
        }
        Ok(Self { section, framing, length })
    }

    /// How the rest of the stream is to be read.
    pub fn framing(&self) -> StreamFraming {
        self.framing
    }

    /// The declared length of the body, which its DATA frames must have (RFC 9114 section 4.1.2).
    pub fn declared_length(&self) -> Option<u64> {
        self.length.filter(|_| self.framing == StreamFraming::Length)
    }

    /// Its method; empty if it has none.
    pub fn method(&self) -> &[u8] {
        self.section.iter().find(|(name, _)| *name == b":method").map_or(b"", |(_, method)| method)
    }

    /// Whether it is a HEAD, even if it is invalid.
    pub fn is_head(&self) -> bool {
        self.method() == b"HEAD"
    }

    /// The value of the field `priority`.
    pub fn priority(&self) -> Option<&[u8]> {
        self.section.iter().find(|(name, _)| *name == b"priority").map(|(_, value)| value)
    }

    /// Reads it into `head`. `key` is the Sec-WebSocket-Key that a WebSocket request has in HTTP/1.1 but not here.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub fn read(&self, head: &mut RequestHead, limits: &HeadLimits, key: &[u8]) -> Result<(), ParseError> {
        let pseudo = Pseudo::of(&self.section).map_err(|Malformed| ParseError::BadRequest)?;
        let is_tunnel = self.framing == StreamFraming::Tunnel;
        let path = pseudo.path.unwrap_or(b"/");
        let (method, target) = match pseudo.method.unwrap_or_default() {
            _ if is_tunnel => (&b"GET"[..], path),
            // Also for an unknown protocol: it has no other representation, and gets the same response.
            b"CONNECT" => (&b"CONNECT"[..], pseudo.authority.unwrap_or_default()),
            method => (method, path),
        };
        let parts = RequestParts {
            version: Version::Http3,
            method,
            target,
            authority: pseudo.authority,
            ended: self.framing == StreamFraming::None,
            websocket: is_tunnel.then_some(key),
        };
        let fields = self.section.iter().filter(|(name, _)| name.first() != Some(&b':'));
        head.assemble(&parts, fields, limits)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::qpack::Encoder;
    use super::*;
    use crate::{Framing, request_framing};

    const GET: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/x?y")];

    fn check(fields: &[(&str, &str)], ended: bool) -> Result<Http3Request, Malformed> {
        let mut encoder = Encoder::new();
        for (name, value) in fields {
            encoder.field(name.as_bytes(), value.as_bytes());
        }
        Http3Request::check(FieldSection::decode(encoder.bytes(), 10_000).unwrap(), ended)
    }

    fn read(request: &Http3Request) -> Result<RequestHead, ParseError> {
        let limits = HeadLimits { head_bytes_max: 1000, headers_max: 10, target_bytes_max: 100 };
        let mut head = RequestHead::new();
        request.read(&mut head, &limits, b"key").map(|()| head)
    }

    #[test]
    fn requests_are_read_like_those_of_other_versions() {
        let request =
            check(&[&GET[..], &[("x-a", "b"), ("cookie", "c=d"), ("cookie", "e=f")]].concat(), true);
        let head = read(&request.unwrap()).unwrap();
        assert_eq!((head.target(), head.host(), head.version()), (&b"/x?y"[..], &b"a"[..], Version::Http3));
        assert_eq!(head.get(b"cookie"), Some(&b"c=d; e=f"[..]));
        assert!(matches!(request_framing(&head), Ok(Framing::None)));
    }

    #[test]
    fn bodies_end_with_their_length_or_their_stream() {
        for (fields, ended, framing, length) in [
            (&[][..], true, StreamFraming::None, None),
            (&[], false, StreamFraming::Stream, None),
            (&[("content-length", "5")], false, StreamFraming::Length, Some(5)),
            (&[("content-length", "0")], true, StreamFraming::None, None),
        ] {
            let request = check(&[&GET[..], fields].concat(), ended).unwrap();
            assert_eq!((request.framing(), request.declared_length()), (framing, length));
        }
        assert!(check(&[&GET[..], &[("content-length", "5")]].concat(), true).is_err(), "there is no body");
    }

    #[test]
    fn websockets_are_tunnels() {
        let mut fields = GET.to_vec();
        fields[0].1 = "CONNECT";
        fields.push((":protocol", "websocket"));
        let request = check(&fields, false).unwrap();
        assert_eq!(request.framing(), StreamFraming::Tunnel);
        let head = read(&request).unwrap();
        assert_eq!((head.method_bytes(), head.get(b"sec-websocket-key")), (&b"GET"[..], Some(&b"key"[..])));
        fields[4].1 = "connect-udp";
        assert_eq!(read(&check(&fields, false).unwrap()).unwrap().method_bytes(), b"CONNECT");
    }

    #[test]
    fn malformed_requests_are_refused() {
        let with = |more: &[(&'static str, &'static str)]| check(&[&GET[..], more].concat(), true);
        assert!(with(&[]).is_ok());
        for more in
            [(":method", "GET"), (":status", "200"), (":unknown", "x"), (":protocol", "websocket"), ("", "x")]
        {
            assert!(with(&[more]).is_err(), "{more:?}");
        }
        assert!(check(&[GET[0], GET[1], ("x", "y"), GET[2], GET[3]], true).is_err(), "after a field");
        for missing in [0, 1, 3] {
            let mut fields = GET.to_vec();
            fields.remove(missing);
            assert!(check(&fields, true).is_err(), "{}", GET[missing].0);
        }
        for (index, value) in [(3, ""), (3, "x"), (3, "*"), (3, "https://a/"), (1, "ftp"), (1, "")] {
            let mut fields = GET.to_vec();
            fields[index].1 = value;
            assert!(check(&fields, true).is_err(), "{value}");
        }
        assert!(check(&[(":method", "CONNECT"), (":authority", "a:1")], true).is_ok());
        assert!(check(&[(":method", "CONNECT"), (":authority", "a:1"), (":path", "/")], true).is_err());
        assert!(check(&[(":method", "OPTIONS"), GET[1], GET[2], (":path", "*")], true).is_ok());
    }

    #[test]
    fn upper_case_is_malformed() {
        // The encoder of sluice sends no upper case, so this is by hand: a literal name "A".
        let encoded = [0, 0, 0xd1, 0xd7, 0xc1, 0x50, 1, b'a', 0x21, b'A', 0];
        let section = FieldSection::decode(&encoded, 1000).unwrap();
        assert_eq!(section.iter().last(), Some((&b"A"[..], &b""[..])));
        assert!(Http3Request::check(section, true).is_err());
    }
}
