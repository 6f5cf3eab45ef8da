//! Fields that say who a client is by the certificate that it has shown. Only the proxy may write them.

use super::claim::begins_with;

/// What their names begin with, in lower case.
pub(super) const PREFIX: &[u8] = b"x-client-cert-";
/// Those of RFC 9440, and what may come to be of their kind; section 2.4 has them taken out.
pub(super) const STANDARD_PREFIX: &[u8] = b"client-cert";

/// Whether a field says who the client is by its certificate, or may be read so: CGI makes `_` of each `-`, so there
/// X_Client_Cert_Verified is the same field.
pub(crate) fn is_identity_field(name: &[u8]) -> bool {
    [PREFIX, STANDARD_PREFIX].into_iter().any(|prefix| begins_with(name, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookalikes_are_such_fields_too() {
        for name in [
            "X-Client-Cert-Verified",
            "x_client_cert_subject",
            "X-CLIENT_Cert-",
            "Client-Cert",
            "client_cert-chain",
        ] {
            assert!(is_identity_field(name.as_bytes()), "{name}");
        }
        for name in ["X-Client-Ip", "X-Client-Cer", "Client", "Cookie", ""] {
            assert!(!is_identity_field(name.as_bytes()), "{name}");
        }
    }
}
