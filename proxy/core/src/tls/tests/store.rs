//! Which certificate a name gets.

use rcgen::{PKCS_ED25519, date_time_ymd};
use rustls::SignatureScheme;

use super::super::now_unix_s;
use super::super::set::Set;
use super::super::store::CertificateStore;
use super::*;

const ECDSA: &[SignatureScheme] = &[SignatureScheme::ECDSA_NISTP256_SHA256];

/// A store of these certificates, in this order.
fn store(folder: &Folder, all: &[(&str, &Made)]) -> CertificateStore {
    let files: Vec<_> = all
        .iter()
        .map(|(name, made)| {
            let pair = folder.write_pair(name, made);
            pair_of(&pair.cert, &pair.key)
        })
        .collect();
    let (set, remarks) = Set::read(&files, &Set::default(), now_unix_s());
    assert!(remarks.iter().all(|remark| !remark.is_mistake), "{remarks:?}");
    let store = CertificateStore::default();
    store.replace(Arc::new(set), now_unix_s());
    store
}

fn is(found: Option<Arc<CertifiedKey>>, made: &Made) -> bool {
    found.is_some_and(|found| found.cert[0].as_ref() == made.der)
}

#[test]
fn exact_precedes_wildcard_and_the_first_is_the_default() {
    let folder = Folder::new();
    let [first, exact, wild] = [&["first.example"][..], &["a.b.example"], &["*.b.example"]].map(made);
    let store = store(&folder, &[("1", &first), ("2", &wild), ("3", &exact)]);
    let cases = [
        (Some("a.b.example"), &exact),
        (Some("A.B.Example"), &exact),
        (Some("a.b.example."), &exact),
        (Some("x.b.example"), &wild),
        (Some("X.B.EXAMPLE"), &wild),
        // A wildcard covers one label (RFC 6125 6.4.3).
        (Some("x.y.b.example"), &first),
        (Some("b.example"), &first),
        (Some("other.example"), &first),
        (Some(""), &first),
        (None, &first),
    ];
    for (name, expected) in cases {
        assert!(is(store.find(name, ECDSA), expected), "{name:?}");
    }
    assert!(store.has("X.b.example") && store.has("a.b.example") && !store.has("b.example"));
}

#[test]
fn an_empty_store_finds_nothing() {
    assert!(CertificateStore::default().find(Some("a.example"), ECDSA).is_none());
}

#[test]
fn the_client_gets_the_certificate_that_it_can_verify() {
    let folder = Folder::new();
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let certificate = params(&["a.example"]).self_signed(&key).unwrap();
    let edwards = Made { chain_pem: certificate.pem(), der: certificate.der().to_vec(), key };
    let ecdsa = made(&["a.example"]);
    let store = store(&folder, &[("1", &edwards), ("2", &ecdsa)]);
    assert!(is(store.find(Some("a.example"), ECDSA), &ecdsa));
    assert!(is(store.find(Some("a.example"), &[SignatureScheme::ED25519]), &edwards));
    assert!(
        is(store.find(Some("a.example"), &[SignatureScheme::RSA_PSS_SHA256]), &edwards),
        "the first certificate"
    );
}

#[test]
fn a_valid_certificate_precedes_an_expired_one() {
    let folder = Folder::new();
    let mut old = params(&["a.example"]);
    (old.not_before, old.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
    let (old, new) = (make(&old), made(&["a.example"]));
    let store = store(&folder, &[("1", &old), ("2", &new)]);
    assert!(is(store.find(Some("a.example"), ECDSA), &new));
    assert!(is(store.find(None, ECDSA), &old), "the default stays the first");
}

#[test]
fn an_added_certificate_is_served_until_it_is_replaced() {
    let folder = Folder::new();
    let [file, one, two] = [&["file.example"][..], &["a.example"], &["a.example"]].map(made);
    let store = store(&folder, &[("1", &file)]);
    let names = ["A.example".to_owned()];
    store.put(&names, certified(&one), "acme").unwrap();
    assert!(is(store.find(Some("a.example"), ECDSA), &one));
    store.put(&names, certified(&two), "acme").unwrap();
    assert!(is(store.find(Some("a.example"), ECDSA), &two));
    assert!(is(store.find(None, ECDSA), &file), "files come first");
    assert_eq!(store.certificates().len(), 2);
    // Reloading files does not remove it.
    store.replace(store.set(), now_unix_s());
    assert!(is(store.find(Some("a.example"), ECDSA), &two));
    let nothing = CertifiedKey::new(Vec::new(), Arc::clone(&certified(&one).key));
    assert!(store.put(&names, Arc::new(nothing), "acme").is_err());
}

#[test]
fn challenges_are_served_until_they_end() {
    let store = CertificateStore::default();
    let made = made(&["a.example"]);
    store.begin_challenge("A.example", &certified(&made));
    assert!(is(store.challenge("a.example"), &made));
    assert!(store.find(Some("a.example"), ECDSA).is_none(), "it serves challenges only");
    store.end_challenge("a.example");
    assert!(store.challenge("a.example").is_none());
}
