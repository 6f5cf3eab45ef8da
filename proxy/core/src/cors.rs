//! What browsers are told about scripts of other sites. Pure: built once from the configuration, then only read.

use sluice_config::Cors;

/// Fields of a response.
type FieldList = Vec<(&'static [u8], Vec<u8>)>;

const ORIGIN: &[u8] = b"Access-Control-Allow-Origin";
const CREDENTIALS: &[u8] = b"Access-Control-Allow-Credentials";
const METHODS: &[u8] = b"Access-Control-Allow-Methods";
const HEADERS: &[u8] = b"Access-Control-Allow-Headers";
const EXPOSE: &[u8] = b"Access-Control-Expose-Headers";
const MAX_AGE: &[u8] = b"Access-Control-Max-Age";

/// The fields of which sluice decides on a route with a policy, in lower case.
pub const OWN: [&[u8]; 7] = [
    b"access-control-allow-origin",
    b"access-control-allow-credentials",
    b"access-control-allow-methods",
    b"access-control-allow-headers",
    b"access-control-allow-private-network",
    b"access-control-expose-headers",
    b"access-control-max-age",
];

/// The policy of a route.
#[derive(Debug)]
pub struct CorsPolicy {
    is_any: bool,
    origins: Vec<Origin>,
    methods: Vec<u8>,
    /// `None` is any.
    headers: Option<Vec<u8>>,
    expose: Vec<u8>,
    credentials: bool,
    max_age: Vec<u8>,
}

#[derive(Debug)]
enum Origin {
    Exact(String),
    /// Scheme with its slashes, and the end of the host with its dot.
    Below(String, String),
}

impl CorsPolicy {
    /// Prepares a policy.
    pub fn new(cors: &Cors) -> Self {
        let origin = |text: &String| match text.split_once("://*") {
            Some((scheme, suffix)) => Origin::Below(format!("{scheme}://"), suffix.to_owned()),
            None => Origin::Exact(text.clone()),
        };
        let joined = |items: &[String]| items.join(", ").into_bytes();
        let is_any_header = cors.headers.iter().any(|name| name == "*");
        Self {
            is_any: cors.origins.iter().any(|origin| origin == "*"),
            origins: cors.origins.iter().map(origin).collect(),
            methods: joined(&cors.methods),
            headers: (!is_any_header).then(|| joined(&cors.headers)),
            expose: joined(&cors.expose),
            credentials: cors.credentials,
            max_age: cors.max_age_s.to_string().into_bytes(),
        }
    }

    /// What a response to a request with this Origin has in addition.
    pub fn response(&self, origin: Option<&[u8]>) -> FieldList {
        let mut fields = self.grant(origin);
        if !fields.is_empty() && !self.expose.is_empty() {
            fields.push((EXPOSE, self.expose.clone()));
        }
        if !self.is_any {
            // Also without an Origin: a cache must not give this response to a script.
            fields.push((b"Vary", b"Origin".to_vec()));
        }
        fields
    }

    /// The fields of the answer to a preflight that asks for these fields. A browser decides by them.
    pub fn preflight(&self, origin: &[u8], asked: &[u8]) -> FieldList {
        let mut fields = self.grant(Some(origin));
        if !fields.is_empty() {
            fields.push((METHODS, self.methods.clone()));
            let headers = self.headers.as_deref().or_else(|| is_list_of_names(asked).then_some(asked));
            if let Some(headers) = headers.filter(|headers| !headers.is_empty()) {
                fields.push((HEADERS, headers.to_vec()));
            }
            fields.push((MAX_AGE, self.max_age.clone()));
        }
        fields.push((
            b"Vary",
            b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers".to_vec(),
        ));
        fields
    }

    fn grant(&self, origin: Option<&[u8]>) -> FieldList {
        let mut fields = FieldList::new();
        match origin {
            _ if self.is_any => fields.push((ORIGIN, b"*".to_vec())),
            Some(origin) if self.allows(origin) => fields.push((ORIGIN, origin.to_vec())),
            _ => return fields,
        }
        if self.credentials {
            fields.push((CREDENTIALS, b"true".to_vec()));
        }
        fields
    }

    fn allows(&self, origin: &[u8]) -> bool {
        self.origins.iter().any(|allowed| match allowed {
            Origin::Exact(allowed) => origin.eq_ignore_ascii_case(allowed.as_bytes()),
            Origin::Below(scheme, suffix) => {
                let host = origin
                    .split_at_checked(scheme.len())
                    .filter(|(start, _)| start.eq_ignore_ascii_case(scheme.as_bytes()));
                host.is_some_and(|(_, host)| is_below(host, suffix.as_bytes()))
            }
        })
    }
}

/// Whether a host, perhaps with a port, is a label or more in front of a suffix.
fn is_below(host: &[u8], suffix: &[u8]) -> bool {
    let Some(length) = host.len().checked_sub(suffix.len()).filter(|length| *length > 0) else {
        return false;
    };
    let (labels, end) = host.split_at(length);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_".contains(byte);
    end.eq_ignore_ascii_case(suffix) && labels.iter().all(is_name)
}

fn is_list_of_names(text: &[u8]) -> bool {
    text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_, ".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(origins: &[&str], credentials: bool, headers: &[&str]) -> CorsPolicy {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        CorsPolicy::new(&Cors {
            origins: texts(origins),
            credentials,
            headers: texts(headers),
            ..Cors::default()
        })
    }

    fn value(fields: &FieldList, name: &[u8]) -> Option<String> {
        let found = fields.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    }

    #[test]
    fn only_the_origins_of_the_list_are_told_yes() {
        let policy = policy(
            &["https://app.example", "https://*.shop.example", "http://*.dev.example:8080"],
            true,
            &[],
        );
        for (origin, allowed) in [
            ("https://app.example", true),
            ("HTTPS://APP.example", true),
            ("http://app.example", false),
            ("https://app.example.evil", false),
            ("https://app.example:8443", false),
            ("https://evilapp.example", false),
            ("https://a.shop.example", true),
            ("https://a.b.shop.example", true),
            ("https://shop.example", false),
            ("https://.shop.example", false),
            ("https://evilshop.example", false),
            ("https://evil.test/.shop.example", false),
            ("https://evil.test?.shop.example", false),
            ("https://a@evil.shop.example", false),
            ("http://a.dev.example:8080", true),
            ("http://a.dev.example", false),
            ("null", false),
            ("", false),
        ] {
            let fields = policy.response(Some(origin.as_bytes()));
            assert_eq!(value(&fields, ORIGIN).as_deref(), allowed.then_some(origin), "{origin}");
            assert_eq!(value(&fields, CREDENTIALS).is_some(), allowed, "{origin}");
            assert_eq!(value(&fields, b"Vary").as_deref(), Some("Origin"), "{origin}");
        }
        assert_eq!(value(&policy.response(None), ORIGIN), None);
    }

    #[test]
    fn any_origin_needs_no_vary() {
        let policy = policy(&["*"], false, &["*"]);
        assert_eq!(policy.response(None), [(ORIGIN, b"*".to_vec())]);
        let fields = policy.preflight(b"https://a.example", b"x-a, content-type");
        assert_eq!(value(&fields, HEADERS).as_deref(), Some("x-a, content-type"));
        assert_eq!(value(&policy.preflight(b"https://a.example", b"x-a\x7f"), HEADERS), None);
    }
}
