//! The certificates that listeners serve before the first order.

use rustls::SignatureScheme;
use sluice_core::tls::Terminators;

use super::super::{Acme, is_source};
use super::{Scratch, config};

const SCHEMES: &[SignatureScheme] = &[SignatureScheme::ECDSA_NISTP256_SHA256];
const LISTENER: &str = "{name: web, address: '127.0.0.1:443', tls: {acme: {names: [a.example, b.example]}}}";

#[test]
fn names_without_a_certificate_get_a_self_signed_one() {
    let scratch = Scratch::new();
    let config = config(&scratch.0, "", LISTENER);
    let terminators = Terminators::default();
    let planned = terminators.plan(&config.listeners).unwrap();
    Acme::new().prepare(&config, planned.by_name()).unwrap();
    let terminator = planned.of("web").unwrap();
    let store = terminator.store();
    for name in ["a.example", "b.example"] {
        let issued = store.issued(name).unwrap();
        assert!(is_source(&issued.source) && issued.names == [name], "{issued:?}");
        assert!(issued.not_after - issued.not_before < 30 * 86_400, "monitoring of expiry reports it");
        assert!(store.find(Some(name), SCHEMES).is_some());
    }
    assert!(store.issued("c.example").is_none());
    store.keep_issued(|certificate| certificate.first_name() == "b.example");
    assert!(store.issued("a.example").is_none() && store.issued("b.example").is_some());
    let offered = &terminator.server_config().alpn_protocols;
    assert!(offered.contains(&b"acme-tls/1".to_vec()), "{offered:?}");
}

#[test]
fn without_acme_no_certificate_is_installed() {
    let text = "listeners: [{name: web, address: '127.0.0.1:443', tls: {certificates: [{folder: /nowhere}]}}]\n\
                clusters: {a: {endpoints: ['127.0.0.1:1']}}\n";
    let config = sluice_config::parse("test.yaml", text, &[]).unwrap();
    assert!(
        Terminators::default()
            .plan(&config.listeners)
            .is_err_and(|said| said.to_string().contains("/nowhere"))
    );
}

#[test]
fn an_unusable_state_folder_is_named() {
    let scratch = Scratch::new();
    std::fs::write(scratch.0.join("file"), "").unwrap();
    let config = config(&scratch.0.join("file"), "", LISTENER);
    let planned = Terminators::default().plan(&config.listeners).unwrap();
    let said = Acme::new().prepare(&config, planned.by_name()).unwrap_err();
    assert!(
        said.to_string().starts_with("acme.state_folder: ") && said.to_string().contains("/file/"),
        "{said}"
    );
}
