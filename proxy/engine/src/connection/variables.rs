//! Fields of a route whose values depend on the request.

use std::borrow::Cow;

use sluice_config::{Template, TemplatePart, Variable};
use sluice_core::tls::ClientIdentity;

use sluice_http::FieldKind;

use super::Connection;
use super::account::Account;
use super::request::cookie;
use super::secure::TlsFacts;
use crate::snapshot::RouteEntry;
use crate::templates::{EditTemplates, RenderedEdits};

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
            None if identity.is_none() && set_cookie.is_none() => return None,
            None => RenderedEdits {
                request: entry.request_edits.clone().unwrap_or_default(),
                response: entry.response_edits.clone().unwrap_or_default(),
            },
        };
        if let Some(identity) = identity {
            identity.complete(&mut edits.request);
            edits.response.add.extend(identity.response.iter().cloned());
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

    fn text(&self, template: &Template, entry: &RouteEntry, account: &Account) -> Vec<u8> {
        let mut text = Vec::new();
        for part in &template.0 {
            match part {
                TemplatePart::Text(part) => text.extend_from_slice(part.as_bytes()),
                TemplatePart::Variable(variable) => {
                    let value = self.value(variable, entry, account);
                    text.extend(value.iter().map(|&byte| if is_in_field(byte) { byte } else { b'?' }));
                }
            }
        }
        text.trim_ascii().to_vec()
    }

    pub(super) fn value<'a>(
        &'a self,
        variable: &Variable,
        entry: &'a RouteEntry,
        account: &'a Account,
    ) -> Cow<'a, [u8]> {
        let head = &self.session.head;
        match variable {
            Variable::ClientIp => Cow::Owned(account.client.to_string().into_bytes()),
            Variable::Host => Cow::Borrowed(head.host_name()),
            Variable::Path => Cow::Borrowed(head.path()),
            Variable::Query => match head.split_target().1 {
                [] => Cow::Borrowed(b""),
                query => Cow::Owned([b"?", query].concat()),
            },
            Variable::Method => Cow::Borrowed(head.method_bytes()),
            Variable::Scheme => Cow::Borrowed(self.scheme(account)),
            Variable::RequestId => Cow::Borrowed(&account.request_id),
            Variable::Route => Cow::Borrowed(entry.config.name.as_bytes()),
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
            Variable::Cookie(name) => {
                let found = head.get(b"cookie").and_then(|field| cookie(field, name.as_bytes()));
                Cow::Borrowed(found.unwrap_or_default())
            }
        }
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
        let is_believed = FieldKind::of(name).is_believed(account.trusted, self.peer.identity.is_some());
        self.session.head.get(name).filter(|_| is_believed).unwrap_or_default()
    }

    fn secured(&self, fact: fn(&TlsFacts) -> &[u8]) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.peer.tls.as_deref().map_or(&[][..], fact))
    }
}

/// RFC 9110 5.5: what a field's value may have. The subject of a certificate may have anything.
fn is_in_field(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}
