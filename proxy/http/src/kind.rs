//! The fields on which the proxy itself acts. `headers` decides what happens to each.

use super::claim::is_claim;
use super::identity::is_identity_field;

/// A field that the proxy knows by name. Determined once, when the head is parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "each variant is the field of that name")]
pub enum FieldKind {
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    KeepAlive,
    ProxyConnection,
    ProxyAuthorization,
    ProxyAuthenticate,
    Te,
    Trailer,
    Upgrade,
    Expect,
    Http2Settings,
    XForwardedFor,
    XForwardedProto,
    XForwardedHost,
    Forwarded,
    XRequestId,
    XRequestStart,
    Via,
    Cookie,
    UserAgent,
    Referer,
    Accept,
    Date,
    Server,
    /// `Proxy`, which CGI-like servers turn into HTTP_PROXY (CVE-2016-5385, "httpoxy").
    Proxy,
    /// A field that states something about the client, such as X-Forwarded-Ssl or X-Real-IP, apart from those above.
    Claim,
    /// A field that identifies the client by its certificate.
    Identity,
    /// A name that becomes one of the above when `_` is read as `-`, as CGI-like servers read it.
    Lookalike,
    /// Any other field.
    Other,
}

impl FieldKind {
    /// The kind of the field with this name, ignoring case.
    pub fn of(name: &[u8]) -> FieldKind {
        match exact(name) {
            FieldKind::Other => Self::of_unlisted(name),
            kind => kind,
        }
    }

    fn of_unlisted(name: &[u8]) -> FieldKind {
        let kind = match () {
            () if is_claim(name) => Self::Claim,
            () if is_identity_field(name) => Self::Identity,
            () => Self::Other,
        };
        let imitates = || kind != Self::Other || owned_lookalike(name).is_some();
        if name.contains(&b'_') && imitates() { Self::Lookalike } else { kind }
    }

    /// Whether what a field of this kind says of the client is believed. `trusted`: the peer is a proxy that may say so;
    /// `is_identified`: this proxy asks for certificates itself.
    pub fn is_believed(self, trusted: bool, is_identified: bool) -> bool {
        use FieldKind::*;
        match self {
            Forwarded | Claim | XForwardedFor | XForwardedProto | XForwardedHost | XRequestId
            | XRequestStart => trusted,
            Identity => trusted && !is_identified,
            Lookalike | Proxy => false,
            _ => true,
        }
    }

    /// Whether the field belongs to one connection or the proxy renders it anew, so that no configured edit may write
    /// it.
    pub fn is_protected(self) -> bool {
        use FieldKind::*;
        matches!(
            self,
            Host | ContentLength
                | TransferEncoding
                | Connection
                | KeepAlive
                | ProxyConnection
                | Te
                | Trailer
                | Upgrade
                | Http2Settings
                | Lookalike
        )
    }

    /// This kind's bit in the set of kinds that a head stores.
    pub(crate) fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// The framing field or proxy-owned field that `name` becomes when `_` is read as `-`.
pub(crate) fn owned_lookalike(name: &[u8]) -> Option<FieldKind> {
    use FieldKind::*;
    let mut dashed = [0; LONGEST_NAME_BYTES];
    let dashed = dashed.get_mut(..name.len())?;
    for (to, from) in dashed.iter_mut().zip(name) {
        *to = if *from == b'_' { b'-' } else { *from };
    }
    match exact(dashed) {
        Other | Cookie | UserAgent | Referer | Accept | Date | Server | Expect => None,
        kind => Some(kind),
    }
}

const LONGEST_NAME_BYTES: usize = b"proxy-authorization".len();

/// This runs for every field of every message, so it lowercases the whole name at once and compares it whole.
fn exact(name: &[u8]) -> FieldKind {
    use FieldKind::*;
    let mut lower = [0; LONGEST_NAME_BYTES];
    let Some(lower) = lower.get_mut(..name.len()) else {
        return Other;
    };
    for (to, from) in lower.iter_mut().zip(name) {
        *to = from.to_ascii_lowercase();
    }
    match &*lower {
        b"te" => Te,
        b"via" => Via,
        b"host" => Host,
        b"date" => Date,
        b"proxy" => Proxy,
        b"accept" => Accept,
        b"cookie" => Cookie,
        b"expect" => Expect,
        b"server" => Server,
        b"referer" => Referer,
        b"upgrade" => Upgrade,
        b"trailer" => Trailer,
        b"forwarded" => Forwarded,
        b"connection" => Connection,
        b"user-agent" => UserAgent,
        b"keep-alive" => KeepAlive,
        b"x-request-id" => XRequestId,
        b"content-length" => ContentLength,
        b"http2-settings" => Http2Settings,
        b"x-forwarded-for" => XForwardedFor,
        b"x-request-start" => XRequestStart,
        b"x-forwarded-host" => XForwardedHost,
        b"proxy-connection" => ProxyConnection,
        b"transfer-encoding" => TransferEncoding,
        b"x-forwarded-proto" => XForwardedProto,
        b"proxy-authenticate" => ProxyAuthenticate,
        b"proxy-authorization" => ProxyAuthorization,
        _ => Other,
    }
}
