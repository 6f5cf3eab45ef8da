//! A listener's TLS as values again; see `emit`.

use serde_yaml::Value;

use super::emit_acme;
use super::out::{Out, file, list, texts};
use super::{CertificateFiles, Listener, Tls, Word};

/// What `listener` says of TLS.
pub(super) fn listener(out: &mut Out, listener: &Listener) {
    out.put("tls", listener.tls.as_ref().map_or(Value::from("off"), tls));
    let redirect = listener.redirect_to_https.map(|redirect| {
        let mut out = Out::default();
        redirect.write_numbers(&mut out.0);
        out.done()
    });
    out.put("redirect_to_https", redirect.unwrap_or(Value::from("off")));
    let hsts = listener.hsts.map(|hsts| {
        let mut out = Out::default();
        hsts.write_numbers(&mut out.0);
        out.put("include_subdomains", hsts.include_subdomains);
        out.put("preload", hsts.preload);
        out.done()
    });
    out.put("hsts", hsts.unwrap_or(Value::from("off")));
}

fn tls(tls: &Tls) -> Value {
    let mut out = Out::default();
    out.put("certificates", list(&tls.certificates, certificate));
    out.put("min_version", tls.min_version.word());
    out.put("cipher_suites", texts(&tls.cipher_suites));
    out.put("session_tickets", tls.session_tickets);
    let mut auth = Out::default();
    auth.put("mode", tls.client_auth.mode.word());
    auth.put_some("ca_file", tls.client_auth.ca_file.as_deref().map(file));
    out.put("client_auth", auth.done());
    out.put("acme", tls.acme.as_ref().map_or(Value::from("off"), emit_acme::listener));
    tls.write_numbers(&mut out.0);
    out.done()
}

fn certificate(files: &CertificateFiles) -> Value {
    let mut out = Out::default();
    match files {
        CertificateFiles::Folder(folder) => out.put("folder", file(folder)),
        CertificateFiles::Pair { cert, key, ocsp } => {
            out.put("cert", file(cert));
            out.put("key", file(key));
            out.put_some("ocsp", ocsp.as_deref().map(file));
        }
    }
    out.done()
}
