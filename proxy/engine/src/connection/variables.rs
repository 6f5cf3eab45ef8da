//! Fields of a route whose values depend on the request.

use std::borrow::Cow;

use sluice_config::{Template, TemplatePart, Variable};
use sluice_core::cors;
use sluice_core::service::logged::VALUE_BYTES_MAX;
use sluice_core::tls::ClientIdentity;
use sluice_http::{FieldEdits, FieldKind};

use super::Connection;
use super::account::Account;
use super::request::cookie;
use super::secure::TlsFacts;
use crate::body_kind::BodyKind;
use crate::snapshot::RouteEntry;
use crate::templates::{EditTemplates, RenderedEdits};

/// Whether a field describes the content of a response, says how long it may be kept, or is one that sluice's errors have
/// of their own.
fn is_of_content(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    let is_policy = name.starts_with(b"content-security-policy");
    (name.starts_with(b"content-") && !is_policy)
        || name.ends_with(b"cache-control")
        || name.starts_with(b"surrogate-")
        || OF_CONTENT.contains(&&name[..])
}

/// Further ones, in lower case.
const OF_CONTENT: [&[u8]; 9] = [
    b"age",
    b"etag",
    b"expires",
    b"last-modified",
    b"location",
    b"pragma",
    b"retry-after",
    b"www-authenticate",
    b"x-sluice-reason",
];

/// The changes of a response that fit another body.
pub(super) fn without_content(edits: &FieldEdits) -> FieldEdits {
    let mut edits = edits.clone();
    edits.set.retain(|(name, _)| !is_of_content(name));
    edits.add.retain(|(name, _)| !is_of_content(name));
    edits
}

impl Connection {
    /// The changes of heads for this exchange, if they are not those of the route.
    pub(super) fn own_edits(
        &self,
        entry: &RouteEntry,
        account: &Account,
        set_cookie: Option<Vec<u8>>,
    ) -> Option<Box<RenderedEdits>> {
        let identity = account.identity.as_ref().filter(|identity| identity.has_edits());
        let mut edits = match &entry.templates {
            Some(templates) => self.render(templates, entry, account),
            None if identity.is_none() && set_cookie.is_none() && entry.cors.is_none() => return None,
            None => RenderedEdits {
                request: entry.request_edits.clone().unwrap_or_default(),
                response: entry.response_edits.clone().unwrap_or_default(),
            },
        };
        if let Some(identity) = identity {
            identity.complete(&mut edits.request);
            edits.response.add.extend(identity.response.iter().cloned());
        }
        if let Some(cors) = &entry.cors {
            let fields = cors.response(self.session.head.get(b"origin"));
            edits.response.remove.extend(cors::OWN.iter().map(|name| name.to_vec()));
            edits.response.add.extend(fields.into_iter().map(|(name, value)| (name.to_vec(), value)));
        }
        edits.response.add.extend(set_cookie.map(|value| (b"Set-Cookie".to_vec(), value)));
        Some(Box::new(edits))
    }

    /// The fields for the exchange whose head was received.
    pub(super) fn render(
        &self,
        templates: &EditTemplates,
        entry: &RouteEntry,
        account: &Account,
    ) -> RenderedEdits {
        let value = |template: &Template| self.text(template, entry, account);
        templates.render(&value)
    }

    /// The changes of responses of a route, for an answer that is not the application's: what protects a page protects that one, too.
    /// What says how long it may be kept is about another one.
    pub(super) fn edits_of_own_answer(&self, entry: &RouteEntry, account: &Account) -> Option<FieldEdits> {
        let edits = match &entry.templates {
            Some(templates) => self.render(templates, entry, account).response,
            None => entry.response_edits.clone()?,
        };
        // Those that sluice sends mean something.
        Some(FieldEdits { remove: Vec::new(), ..without_content(&edits) })
    }

    fn text(&self, template: &Template, entry: &RouteEntry, account: &Account) -> Vec<u8> {
        let mut text = Vec::new();
        for part in &template.0 {
            match part {
                TemplatePart::Text(part) => text.extend_from_slice(part.as_bytes()),
                TemplatePart::Variable(variable) => {
                    let value = self.value(variable, Some(entry), account);
                    text.extend(value.iter().map(|&byte| if is_in_field(byte) { byte } else { b'?' }));
                }
            }
        }
        text.trim_ascii().to_vec()
    }

    pub(super) fn value<'a>(
        &'a self,
        variable: &Variable,
        entry: Option<&'a RouteEntry>,
        account: &'a Account,
    ) -> Cow<'a, [u8]> {
        let head = &self.session.head;
        match variable {
            Variable::ClientIp => Cow::Owned(account.client.to_string().into_bytes()),
            Variable::ClientPort => match self.peer.port {
                port if port > 0 && account.client == self.peer.address.to_canonical() => {
                    Cow::Owned(port.to_string().into_bytes())
                }
                _ => Cow::Borrowed(b""),
            },
            Variable::Host => Cow::Borrowed(head.host_name()),
            Variable::Path => Cow::Borrowed(head.path()),
            Variable::Query => match head.split_target().1 {
                [] => Cow::Borrowed(b""),
                query => Cow::Owned([b"?", query].concat()),
            },
            Variable::Method => Cow::Borrowed(head.method_bytes()),
            Variable::Scheme => Cow::Borrowed(self.scheme(account)),
            Variable::RequestId => Cow::Borrowed(&account.request_id),
            Variable::Route => Cow::Borrowed(entry.map_or(&[][..], |entry| entry.config.name.as_bytes())),
            Variable::TlsVersion => self.secured(|facts| facts.version.as_bytes()),
            Variable::TlsSni => self.secured(|facts| facts.server_name.as_bytes()),
            Variable::AuthUser => {
                let user = account.identity.as_ref().and_then(|identity| identity.user.as_deref());
                Cow::Borrowed(user.unwrap_or_default().as_bytes())
            }
            Variable::ClientCertSubject => {
                let subject = self.peer.identity.as_deref().and_then(ClientIdentity::subject);
                Cow::Borrowed(subject.unwrap_or_default())
            }
            Variable::Header(name) => Cow::Borrowed(self.field(name.as_bytes(), account)),
            Variable::Cookie(name) => Cow::Borrowed(cookie(head, name.as_bytes()).unwrap_or_default()),
            Variable::Group(name) => {
                let group = entry.and_then(|entry| entry.group(head.path(), name));
                Cow::Owned(group.unwrap_or_default())
            }
        }
    }

    /// A body with variables. Their values are encoded so that they stay what they are in a body of this type.
    pub(super) fn body_of(
        &self,
        template: &Template,
        content_type: &str,
        entry: &RouteEntry,
        account: &Account,
    ) -> Vec<u8> {
        let encode = BodyKind::of(content_type);
        let mut body = Vec::new();
        for part in &template.0 {
            match part {
                TemplatePart::Text(text) => body.extend_from_slice(text.as_bytes()),
                TemplatePart::Variable(variable) => {
                    encode.push(&self.value(variable, Some(entry), account), &mut body)
                }
            }
        }
        body
    }

    /// The values of `access_log.variables` for the exchange.
    pub(super) fn logged_variables<'l>(
        &self,
        logged: &'l [(String, Template)],
        entry: Option<&RouteEntry>,
        account: &Account,
    ) -> Vec<(&'l str, Vec<u8>)> {
        let value = |template: &Template| {
            let mut text = Vec::new();
            for part in &template.0 {
                match part {
                    TemplatePart::Text(part) => text.extend_from_slice(part.as_bytes()),
                    TemplatePart::Variable(variable) => {
                        text.extend_from_slice(&self.value(variable, entry, account))
                    }
                }
            }
            text.truncate(VALUE_BYTES_MAX);
            text
        };
        logged.iter().map(|(name, template)| (name.as_str(), value(template))).collect()
    }

    /// As in X-Forwarded-Proto.
    pub(super) fn scheme(&self, account: &Account) -> &'static [u8] {
        let reported = self.session.head.field(FieldKind::XForwardedProto).filter(|_| account.trusted);
        let is_secure = match reported {
            Some(_) => self.came_by_https(account),
            None => self.listener.tls().is_some(),
        };
        if is_secure { b"https" } else { b"http" }
    }

    /// A field of the request, unless the application would not get it from this client either.
    fn field(&self, name: &[u8], account: &Account) -> &[u8] {
        self.session.head.get(name).filter(|_| self.is_believed(name, account)).unwrap_or_default()
    }

    fn secured(&self, fact: fn(&TlsFacts) -> &[u8]) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.peer.tls.as_deref().map_or(&[][..], fact))
    }
}

/// RFC 9110 5.5: what a field's value may have. The subject of a certificate may have anything.
fn is_in_field(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}
