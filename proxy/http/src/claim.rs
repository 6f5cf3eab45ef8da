//! Fields that state who a client is, how it reached the first proxy, or what that proxy does for the application.
//! Applications trust these fields, so sluice forwards them only from a trusted proxy.

/// Prefix of these names, in lower case.
const PREFIX: &[u8] = b"x-forwarded-";

/// Other such names, in lower case, that frameworks, servers and middleware trust.
const NAMES: [&[u8]; 17] = [
    b"client-ip",
    b"front-end-https",
    b"true-client-ip",
    // An application would name files in place of its response.
    b"x-accel-mapping",
    b"x-client-ip",
    b"x-cluster-client-ip",
    b"x-forwarded",
    b"x-https",
    b"x-original-host",
    b"x-original-method",
    b"x-original-url",
    b"x-original-uri",
    b"x-real-ip",
    b"x-rewrite-url",
    b"x-scheme",
    b"x-sendfile-type",
    b"x-url-scheme",
];

/// Whether `name` is one of these, or becomes one when `_` is read as `-`, as CGI and Rack do.
pub(super) fn is_claim(name: &[u8]) -> bool {
    // This runs for every unknown field, so the first letter sorts out most of them.
    matches!(name.first(), Some(b'x' | b'X' | b'c' | b'C' | b'f' | b'F' | b't' | b'T'))
        && (begins_with(name, PREFIX)
            || NAMES.iter().any(|known| name.len() == known.len() && begins_with(name, known)))
}

/// Whether `name` starts with `dashed`, ignoring case and treating `_` as `-`.
pub(super) fn begins_with(name: &[u8], dashed: &[u8]) -> bool {
    let fold = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.get(..dashed.len()).is_some_and(|begin| begin.iter().map(fold).eq(dashed.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_recognized_in_every_spelling() {
        for name in [
            "X-Forwarded-Ssl",
            "X-Forwarded-Scheme",
            "x_forwarded_port",
            "X-FORWARDED_Prefix",
            "X-Forwarded-Protocol",
            "X-Forwarded-By-A-Name-Of-Any-Length",
            "Front-End-Https",
            "front_end_https",
            "X-Real-IP",
            "X-Url-Scheme",
            "Client-IP",
            "X-Rewrite-Url",
        ] {
            assert!(is_claim(name.as_bytes()), "{name}");
        }
        for name in ["X-Forwarded-", "X-Forwarded"] {
            assert!(is_claim(name.as_bytes()), "{name}");
        }
        for name in ["X-Real-Ips", "X-Forward", "Client", "Cookie", "Forwarded", "Content-Type", ""] {
            assert!(!is_claim(name.as_bytes()), "{name}");
        }
    }
}
