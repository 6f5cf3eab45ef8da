//! Rewrites Set-Cookie of an application that serves at the root, for clients that reach it below a path prefix. Only
//! the Path changes. A value that is not a valid cookie stays as it is.

use super::grammar::is_token;

/// A path prefix for cookies, and the host to which it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieScope {
    /// Starts with a slash and does not end with one.
    prefix: Vec<u8>,
    /// Without port.
    host: Vec<u8>,
}

impl CookieScope {
    /// Moves paths below `prefix`, for cookies without a domain or with the domain `host`, which has no port.
    pub fn new(prefix: &[u8], host: &[u8]) -> Self {
        Self { prefix: prefix.to_vec(), host: host.to_vec() }
    }

    /// The Set-Cookie value for the client; `None` if it does not change.
    pub(crate) fn rewrite(&self, value: &[u8]) -> Option<Vec<u8>> {
        let mut parts = value.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let pair = parts.next().filter(|pair| is_cookie_pair(pair))?;
        let attributes: Vec<&[u8]> = parts.collect();
        let last = |name: &[u8]| attributes.iter().rev().find_map(|attribute| value_of(attribute, name));
        let domain = last(b"domain").unwrap_or_default();
        if !domain.is_empty() && !domain.eq_ignore_ascii_case(&self.host) {
            return None;
        }
        let path = self.joined(last(b"path").unwrap_or_default());
        let mut scoped = pair.to_vec();
        let mut put = |attribute: &[u8]| {
            scoped.extend_from_slice(b"; ");
            scoped.extend_from_slice(attribute);
        };
        let path = [b"Path=", path.as_slice()].concat();
        put(&path);
        let others = attributes.iter().filter(|one| !one.is_empty() && value_of(one, b"path").is_none());
        others.for_each(|attribute| put(attribute));
        Some(scoped)
    }

    /// The path below the prefix, without `.`, `..` and empty segments, like Go's url.JoinPath.
    fn joined(&self, path: &[u8]) -> Vec<u8> {
        let mut segments: Vec<&[u8]> = Vec::new();
        let both = self.prefix.split(|byte| *byte == b'/').chain(path.split(|byte| *byte == b'/'));
        for segment in both {
            match segment {
                b"" | b"." => {}
                b".." => drop(segments.pop()),
                name => segments.push(name),
            }
        }
        let mut joined = Vec::with_capacity(self.prefix.len() + 1 + path.len());
        for segment in &segments {
            joined.push(b'/');
            joined.extend_from_slice(segment);
        }
        if joined.is_empty() { b"/".to_vec() } else { joined }
    }
}

/// The attribute's value, if `wanted` (in lower case) is its name.
fn value_of<'v>(attribute: &'v [u8], wanted: &[u8]) -> Option<&'v [u8]> {
    let (name, value) = match attribute.iter().position(|byte| *byte == b'=') {
        Some(equals) => (&attribute[..equals], &attribute[equals + 1..]),
        None => (attribute, &b""[..]),
    };
    let fits =
        name.trim_ascii().eq_ignore_ascii_case(wanted) && value.iter().all(|byte| is_value_byte(*byte));
    fits.then(|| value.trim_ascii())
}

/// Whether it is a `name=value` that Go's http.ParseSetCookie accepts.
fn is_cookie_pair(pair: &[u8]) -> bool {
    let Some(equals) = pair.iter().position(|byte| *byte == b'=') else { return false };
    let (name, value) = (pair[..equals].trim_ascii(), &pair[equals + 1..]);
    let bare = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
    is_token(name) && bare.iter().all(|byte| is_value_byte(*byte))
}

fn is_value_byte(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte) && !matches!(byte, b'"' | b';' | b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scoped(prefix: &str, host: &str, cookie: &str) -> String {
        let scope = CookieScope::new(prefix.as_bytes(), host.as_bytes());
        let value = scope.rewrite(cookie.as_bytes()).unwrap_or_else(|| cookie.as_bytes().to_vec());
        String::from_utf8_lossy(&value).into_owned()
    }

    /// The value of the last Path, as a client reads it.
    fn path(cookie: &str) -> &str {
        cookie.split("; ").filter_map(|part| part.strip_prefix("Path=")).last().unwrap_or_default()
    }

    #[test]
    fn cookie_paths_match_kamal_proxys_tests() {
        for (prefix, cookie, wanted) in [
            ("/api", "session=abc; Path=/", "/api"),
            ("/api", "session=abc; Path=/admin", "/api/admin"),
            ("/api", "session=abc", "/api"),
            ("/api", "session=abc; Path=/; Domain=example.com", "/api"),
            ("/api", "tracking=xyz; Path=/; Domain=other.com", "/"),
            ("/app", "a=1; Path=/", "/app"),
            ("/app", "b=2; Path=/foo", "/app/foo"),
            ("/app", "c=3; Path=/; Domain=third.com", "/"),
        ] {
            assert_eq!(path(&scoped(prefix, "example.com", cookie)), wanted, "{cookie}");
        }
    }

    #[test]
    fn cookie_domains_match_kamal_proxys_tests() {
        for (host, domain, is_scoped) in [
            ("example.com", "", true),
            ("example.com", "example.com", true),
            ("example.com", "Example.COM", true),
            ("example.com", "other.com", false),
            ("example.com", "sub.example.com", false),
            ("sub.example.com", "example.com", false),
        ] {
            let domain = if domain.is_empty() { String::new() } else { format!("; Domain={domain}") };
            let cookie = scoped("/api", host, &format!("test=value; Path=/original{domain}"));
            let wanted = if is_scoped { "/api/original" } else { "/original" };
            assert_eq!(path(&cookie), wanted, "{cookie}");
        }
    }

    #[test]
    fn only_the_cookie_path_changes() {
        let cookie =
            "a=\"b c\"; path=/x/;HttpOnly; Secure; SameSite=Lax; Max-Age=0; Future=1; Path=y//./z/..";
        let wanted = "a=\"b c\"; Path=/api/y; HttpOnly; Secure; SameSite=Lax; Max-Age=0; Future=1";
        assert_eq!(scoped("/api", "h", cookie), wanted);
        for odd in ["", "a", "a b=c; Path=/", "=b", "a=b\\c", "a=\"b"] {
            assert_eq!(scoped("/api", "h", odd), odd);
        }
        assert_eq!(path(&scoped("/api", "h", "a=b; Path=/../../x")), "/x");
        assert_eq!(path(&scoped("/api", "h", "a=b; Path=..")), "/");
    }
}
