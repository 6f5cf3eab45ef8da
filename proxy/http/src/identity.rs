//! Fields that identify a client by its certificate. Only the proxy may write them.

use super::claim::begins_with;

/// Prefix of their names, in lower case.
pub(super) const PREFIX: &[u8] = b"x-client-cert-";
/// Prefix of the fields of RFC 9440 and of possible later ones. Section 2.4 requires that they are removed.
pub(super) const STANDARD_PREFIX: &[u8] = b"client-cert";

/// Whether a field identifies the client by its certificate, or may be read that way: CGI turns each `-` into `_`, so
/// X_Client_Cert_Verified becomes the same field there.
pub(crate) fn is_identity_field(name: &[u8]) -> bool {
    [PREFIX, STANDARD_PREFIX].into_iter().any(|prefix| begins_with(name, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_fields_include_lookalikes() {
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
