//! The fields that tell the application about a client's certificate.

use std::borrow::Cow;
use std::fmt::Write;

use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use sluice_config::CertificateAuth;

use x509_parser::prelude::{AttributeTypeAndValue, FromDer, GeneralName, X509Certificate, X509Name};

use crate::clock::unix_s;

/// A client's identity from its certificate, as fields of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    fields: Vec<(&'static [u8], Vec<u8>)>,
    /// What its certificate names beside the subject: DNS names, mail addresses, URIs.
    names: Vec<AlternativeName>,
    /// When it is no longer valid, in seconds since 1970: a session may last longer.
    until_unix_s: i64,
    /// The host requested in its handshake, in lower case, if there was one.
    host: Option<String>,
}

impl ClientIdentity {
    /// The identity from the chain that rustls has verified; `None` if the client sent no certificate.
    pub fn new(chain: Option<&[CertificateDer<'_>]>) -> Self {
        let leaf = chain.and_then(<[_]>::first);
        let parsed = leaf.and_then(|leaf| Some((leaf, X509Certificate::from_der(leaf).ok()?.1)));
        let Some((leaf, certificate)) = parsed else {
            return Self {
                fields: vec![(b"X-Client-Cert-Verified", b"NONE".to_vec())],
                names: Vec::new(),
                until_unix_s: 0,
                host: None,
            };
        };
        let fingerprint = data_encoding::HEXLOWER.encode(&Sha256::digest(leaf));
        let serial = data_encoding::HEXUPPER.encode(certificate.raw_serial());
        let fields: [(&'static [u8], String); 5] = [
            (b"X-Client-Cert-Verified", "SUCCESS".to_owned()),
            (b"X-Client-Cert-Subject", distinguished(certificate.subject())),
            (b"X-Client-Cert-Issuer", distinguished(certificate.issuer())),
            (b"X-Client-Cert-Serial", serial),
            (b"X-Client-Cert-Fingerprint", fingerprint),
        ];
        let fields = fields.into_iter().filter(|(_, value)| !value.is_empty());
        let fields = fields.map(|(name, value)| (name, value.into_bytes())).collect();
        let until_unix_s = certificate.validity().not_after.timestamp();
        Self { fields, names: alternative_names(&certificate), until_unix_s, host: None }
    }

    /// Adds the host of the handshake.
    pub fn asking_for(self, host: Option<&str>) -> Self {
        Self { host: host.map(str::to_ascii_lowercase), ..self }
    }

    /// Whether a request for this host may use its connection.
    pub fn is_for(&self, host: &[u8]) -> bool {
        let host = host.strip_suffix(b".").unwrap_or(host);
        // An HTTP/1.0 client sends no host, and gets the default content.
        host.is_empty() || self.host.as_ref().is_none_or(|asked| host.eq_ignore_ascii_case(asked.as_bytes()))
    }

    /// The subject of its certificate.
    pub fn subject(&self) -> Option<&[u8]> {
        self.value(b"X-Client-Cert-Subject")
    }

    /// Whether its certificate was verified, and is one of those that a route wants.
    pub fn is_one_of(&self, wanted: &CertificateAuth) -> bool {
        let CertificateAuth { subjects, names, fingerprints } = wanted;
        let has = |field: &[u8], texts: &[String]| {
            self.value(field).is_some_and(|value| texts.iter().any(|text| text.as_bytes() == value))
        };
        let is_any = subjects.is_empty() && names.is_empty() && fingerprints.is_empty();
        self.value(b"X-Client-Cert-Verified") == Some(b"SUCCESS")
            && i64::try_from(unix_s()).is_ok_and(|now| now <= self.until_unix_s)
            && (is_any
                || has(b"X-Client-Cert-Subject", subjects)
                || has(b"X-Client-Cert-Fingerprint", fingerprints)
                || self.names.iter().any(|own| names.iter().any(|name| own.is(name))))
    }

    fn value(&self, field: &[u8]) -> Option<&[u8]> {
        self.fields.iter().find(|(name, _)| *name == field).map(|(_, value)| &value[..])
    }

    /// Names and values; the values are visible ASCII with blanks inside.
    pub fn fields(&self) -> &[(&'static [u8], Vec<u8>)] {
        &self.fields
    }
}

/// A name of a certificate beside its subject.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AlternativeName {
    Dns(String),
    Mail(String),
    Uri(String),
}

impl AlternativeName {
    /// Whether it is the configured one, which says by its form of what kind it is. Only hosts ignore case.
    fn is(&self, wanted: &str) -> bool {
        match self {
            Self::Uri(name) => wanted.contains("://") && name == wanted,
            Self::Mail(name) => wanted.contains('@') && !wanted.contains("://") && name == wanted,
            Self::Dns(name) => !wanted.contains(['@', ':']) && name.eq_ignore_ascii_case(wanted),
        }
    }
}

/// The names of subjectAltName that are text (RFC 5280 section 4.2.1.6).
fn alternative_names(certificate: &X509Certificate<'_>) -> Vec<AlternativeName> {
    let extension = certificate.subject_alternative_name().ok().flatten();
    let names = extension.iter().flat_map(|extension| &extension.value.general_names);
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(AlternativeName::Dns((*name).to_owned())),
        GeneralName::RFC822Name(name) => Some(AlternativeName::Mail((*name).to_owned())),
        GeneralName::URI(name) => Some(AlternativeName::Uri((*name).to_owned())),
        _ => None,
    };
    names.filter_map(text).collect()
}

/// RFC 4514, in ASCII: the most specific part first, as in nginx.
fn distinguished(name: &X509Name<'_>) -> String {
    let mut text = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for (index, part) in parts.into_iter().rev().enumerate() {
        for (number, attribute) in part.iter().enumerate() {
            match (index, number) {
                (0, 0) => {}
                (_, 0) => text.push(','),
                _ => text.push('+'),
            }
            text.push_str(&kind(attribute));
            text.push('=');
            match attribute.as_str() {
                Ok(value) => escape(&mut text, value),
                Err(_) => hexadecimal(&mut text, attribute),
            }
        }
    }
    text
}

/// RFC 4514 section 3; other kinds are written as numbers.
fn kind(attribute: &AttributeTypeAndValue<'_>) -> Cow<'static, str> {
    let oid = attribute.attr_type().to_id_string();
    let short = match oid.as_str() {
        "2.5.4.3" => "CN",
        "2.5.4.5" => "serialNumber",
        "2.5.4.6" => "C",
        "2.5.4.7" => "L",
        "2.5.4.8" => "ST",
        "2.5.4.9" => "STREET",
        "2.5.4.10" => "O",
        "2.5.4.11" => "OU",
        "0.9.2342.19200300.100.1.1" => "UID",
        "0.9.2342.19200300.100.1.25" => "DC",
        "1.2.840.113549.1.9.1" => "emailAddress",
        _ => return Cow::Owned(oid),
    };
    Cow::Borrowed(short)
}

/// RFC 4514 section 2.4. Bytes that could end the value or the field, or that are not ASCII, are written as two hex
/// digits.
fn escape(out: &mut String, value: &str) {
    let last = value.len().saturating_sub(1);
    for (index, byte) in value.bytes().enumerate() {
        let is_edge = index == 0 || index == last;
        let special =
            b",+\"\\<>;=".contains(&byte) || (byte == b'#' && index == 0) || (byte == b' ' && is_edge);
        match byte {
            b' '..=b'~' if !special => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "\\{byte:02X}");
            }
        }
    }
}

/// A value that is not text: its DER.
fn hexadecimal(out: &mut String, attribute: &AttributeTypeAndValue<'_>) {
    let value = attribute.attr_value();
    out.push('#');
    {
        let _ = write!(out, "{:02X}", value.header.tag().0 & 0xff);
    };
    match value.data.len() {
        length @ 0..0x80 => {
            let _ = write!(out, "{length:02X}");
        }
        length @ 0x80..0x100 => {
            let _ = write!(out, "81{length:02X}");
        }
        length => {
            let _ = write!(out, "82{:04X}", length & 0xffff);
        }
    }
    out.push_str(&data_encoding::HEXUPPER.encode(value.data));
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_for_the_host_of_the_handshake_are_accepted() {
        let identity = |host| ClientIdentity::new(None).asking_for(host);
        for (asked, host, fits) in [
            (Some("A.test"), "a.test", true),
            (Some("a.test"), "a.test.", true),
            (Some("a.test"), "b.test", false),
            (Some("a.test"), "", true),
            (None, "b.test", true),
        ] {
            assert_eq!(identity(asked).is_for(host.as_bytes()), fits, "{asked:?} {host}");
        }
    }
}
