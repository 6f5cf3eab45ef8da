//! Text with variables, `{client_ip}`, that are replaced by what is known of a request.

use regex::bytes::Regex;

use super::Mistake;
use super::problem::quote;
use super::text::{field_name, is_token};

/// Maximum number of variables in one text: each may insert as much as a whole field.
const VARIABLES_MAX: usize = 20;

/// A text, read.
#[derive(Clone, Debug, PartialEq)]
pub struct Template(pub Vec<TemplatePart>);

/// A part of a text.
#[derive(Clone, Debug, PartialEq)]
pub enum TemplatePart {
    /// Used as it is.
    Text(String),
    /// Replaced.
    Variable(Variable),
}

macro_rules! variables {
    ($($(#[$doc:meta])* $name:ident = $word:literal;)*) => {
        /// What a text may refer to. A variable without a value is empty.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Variable {
            $($(#[$doc])* $name,)*
            /// The first field of the request with this name, in lower case.
            Header(String),
            /// The first cookie of the request with this name.
            Cookie(String),
            /// What a group of the route's `path_regex` matched; its number or name.
            Group(String),
        }

        /// Their names, without those that take a name.
        pub(super) const WORDS: &[&str] = &[$($word,)*];

        fn named(word: &str) -> Option<Variable> {
            match word {
                $($word => Some(Variable::$name),)*
                _ => None,
            }
        }
    };
}

variables! {
    /// Address of the client; behind trusted proxies, the one that they report.
    ClientIp = "client_ip";
    /// Port of the client; empty if a proxy reports the client, because it does not report the port.
    ClientPort = "client_port";
    /// Host of the request, without a port.
    Host = "host";
    /// Path as the client sent it.
    Path = "path";
    /// Query with its question mark; empty without one.
    Query = "query";
    /// Method.
    Method = "method";
    /// `https` or `http`; behind a trusted proxy, what it reports.
    Scheme = "scheme";
    /// X-Request-Id, as the application gets it.
    RequestId = "request_id";
    /// Name of the route.
    Route = "route";
    /// Version of TLS with the client: `TLSv1.3`, `TLSv1.2`.
    TlsVersion = "tls_version";
    /// Server name that the client's TLS handshake asked for.
    TlsSni = "tls_sni";
    /// Name of the user, by `auth.basic`.
    AuthUser = "auth_user";
    /// Subject of the client's certificate, if it was verified.
    ClientCertSubject = "client_cert_subject";
}

impl Template {
    /// Reads a text. `{{` and `}}` are braces.
    ///
    /// # Errors
    /// What is wrong, and what to write.
    pub fn read(text: &str) -> Result<Self, Mistake> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(after) = rest.strip_prefix("{{").or_else(|| rest.strip_prefix("}}")) {
                literal.push_str(&rest[..1]);
                rest = after;
                continue;
            }
            let inside = rest.strip_prefix('{').and_then(|inside| inside.split_once('}'));
            let Some((word, after)) = inside else {
                return Err(
                    format!("{} has a stray brace; write {{{{ or }}}} for a brace", quote(text)).into()
                );
            };
            if !literal.is_empty() {
                parts.push(TemplatePart::Text(std::mem::take(&mut literal)));
            }
            parts.push(TemplatePart::Variable(variable(text, word)?));
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(TemplatePart::Text(literal));
        }
        let template = Self(parts);
        if template.variables() > VARIABLES_MAX {
            return Err(
                format!("{} has too many variables; write at most {VARIABLES_MAX}", quote(text)).into()
            );
        }
        Ok(template)
    }

    /// Whether it is the same for every request.
    pub fn is_fixed(&self) -> bool {
        self.variables() == 0
    }

    /// The groups of `path_regex` that it refers to.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            TemplatePart::Variable(Variable::Group(name)) => Some(name.as_str()),
            TemplatePart::Text(_) | TemplatePart::Variable(_) => None,
        })
    }

    fn variables(&self) -> usize {
        self.0.iter().filter(|part| matches!(part, TemplatePart::Variable(_))).count()
    }
}

/// The index of a group, by its number or name.
pub fn group_of(pattern: &Regex, name: &str) -> Option<usize> {
    match name.parse::<usize>() {
        Ok(number) => Some(number).filter(|number| *number < pattern.captures_len()),
        Err(_) => pattern.capture_names().position(|known| known == Some(name)),
    }
}

fn variable(text: &str, word: &str) -> Result<Variable, Mistake> {
    let known = match word.split_once(':') {
        Some(("header", name)) if field_name(name).is_ok() => {
            Some(Variable::Header(name.to_ascii_lowercase()))
        }
        Some(("cookie", name)) if is_token(name) => Some(Variable::Cookie(name.to_owned())),
        Some(("group", name)) if !name.is_empty() => Some(Variable::Group(name.to_owned())),
        Some(_) => None,
        None => named(word),
    };
    known.ok_or_else(|| {
        let hint = match super::nearest::nearest(word, WORDS) {
            Some(near) => format!("did you mean {{{near}}}?"),
            None => format!(
                "known are {}, header:NAME, cookie:NAME, group:NAME, and {{{{ for a brace",
                WORDS.join(", ")
            ),
        };
        format!("{} has an unknown variable, {{{word}}}; {hint}", quote(text)).into()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_variables_and_braces() {
        let text = |text: &str| TemplatePart::Text(text.to_owned());
        for (source, wanted) in [
            ("", vec![]),
            ("plain", vec![text("plain")]),
            ("{{a}}", vec![text("{a}")]),
            ("for={client_ip};x", vec![text("for="), TemplatePart::Variable(Variable::ClientIp), text(";x")]),
            ("{header:X-A}", vec![TemplatePart::Variable(Variable::Header("x-a".to_owned()))]),
            ("{cookie:Sid}", vec![TemplatePart::Variable(Variable::Cookie("Sid".to_owned()))]),
        ] {
            assert_eq!(Template::read(source).unwrap().0, wanted, "{source}");
        }
        assert!(Template::read("a{{b").unwrap().is_fixed());
    }

    #[test]
    fn mistakes_say_what_to_write() {
        for (source, wanted) in [
            ("{clientip}", "has an unknown variable, {clientip}; did you mean {client_ip}?"),
            ("{zzzzzz}", "known are client_ip, client_port, host"),
            ("{header:}", "has an unknown variable"),
            ("{header:a b}", "has an unknown variable"),
            ("{\"a\": 1}", "has an unknown variable"),
            ("a{", "has a stray brace; write {{ or }} for a brace"),
            ("a}b", "has a stray brace"),
            (&"{host}".repeat(21), "too many variables"),
        ] {
            let message = Template::read(source).unwrap_err().to_string();
            assert!(message.contains(wanted), "{source}: {message}");
        }
    }
}
