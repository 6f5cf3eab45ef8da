//! Changing files, with a configuration that changes or stays.

use std::time::{Duration, Instant};

use rustls::SignatureScheme;
use sluice_config::{ClientAuth, ClientAuthMode};

use super::super::Terminators;
use super::*;

const SCHEMES: &[SignatureScheme] = &[SignatureScheme::ECDSA_NISTP256_SHA256];

/// Terminators that serve these files.
fn serving(files: Vec<CertificateFiles>) -> Terminators {
    let terminators = Terminators::default();
    let planned = terminators.plan(&[listener(tls(files))]).unwrap();
    terminators.switch(&planned);
    terminators
}

fn served(terminators: &Terminators) -> Vec<String> {
    let certificates = terminators.certificates();
    certificates.iter().map(|(_, certificate)| certificate.first_name().to_owned()).collect()
}

fn der(terminators: &Terminators, listeners: &[Listener]) -> Vec<u8> {
    let planned = terminators.plan(listeners).unwrap();
    planned.of("web").unwrap().store().find(None, SCHEMES).unwrap().cert[0].to_vec()
}

/// Checks the files often enough for a change to count as settled.
fn look(terminators: &Terminators, begun: Instant, times: u64) {
    for second in 1..=times {
        terminators.look(begun + Duration::from_secs(second * 20));
    }
}

#[test]
fn a_renewed_certificate_is_served_once_its_files_are_settled() {
    let folder = Folder::new();
    let pair = folder.write_pair("a", &made(&["old.example"]));
    let terminators = serving(vec![pair_of(&pair.cert, &pair.key)]);
    let begun = Instant::now();
    look(&terminators, begun, 2);
    assert_eq!(served(&terminators), ["old.example"]);
    folder.write_pair("a", &made(&["new.example"]));
    terminators.look(begun + Duration::from_secs(60));
    assert_eq!(served(&terminators), ["old.example"], "the files may still be being written");
    terminators.look(begun + Duration::from_secs(61));
    assert_eq!(served(&terminators), ["old.example"], "the check is not due yet");
    terminators.look(begun + Duration::from_secs(80));
    assert_eq!(served(&terminators), ["new.example"]);
}

#[test]
fn a_change_before_the_first_check_is_noticed() {
    let folder = Folder::new();
    let pair = folder.write_pair("a", &made(&["old.example"]));
    let terminators = serving(vec![pair_of(&pair.cert, &pair.key)]);
    folder.write_pair("a", &made(&["new.example"]));
    look(&terminators, Instant::now(), 2);
    assert_eq!(served(&terminators), ["new.example"]);
}

#[test]
fn a_malformed_file_keeps_the_old_certificate() {
    let folder = Folder::new();
    let pair = folder.write_pair("a", &made(&["a.example"]));
    let files = vec![pair_of(&pair.cert, &pair.key)];
    let terminators = serving(files.clone());
    let begun = Instant::now();
    // The state between the two renames of a renewal.
    let next = made(&["a.example", "b.example"]);
    folder.write("a.pem", &next.chain_pem);
    look(&terminators, begun, 4);
    let before = terminators.certificates();
    assert_eq!(before[0].1.names, ["a.example"]);
    let refused = terminators.plan(&[listener(tls(files))]).map(drop).unwrap_err();
    assert!(
        refused.to_string().starts_with("listeners[0].tls.certificates[0]: ")
            && refused.to_string().contains("the key does not match"),
        "{refused}"
    );
    folder.write("a.key", next.key.serialize_pem());
    look(&terminators, begun + Duration::from_secs(200), 3);
    assert_eq!(terminators.certificates()[0].1.names, ["a.example", "b.example"]);
}

#[test]
fn changes_in_a_folder_are_noticed() {
    let folder = Folder::new();
    folder.write_pair("certs/a", &made(&["a.example"]));
    let terminators = serving(vec![CertificateFiles::Folder(folder.path("certs"))]);
    let begun = Instant::now();
    folder.write_pair("certs/b", &made(&["b.example"]));
    folder.write("certs/c.pem", "junk");
    folder.write("certs/c.key", "junk");
    look(&terminators, begun, 3);
    assert_eq!(served(&terminators), ["a.example", "b.example"]);
    fs::remove_file(folder.path("certs/a.pem")).unwrap();
    look(&terminators, begun + Duration::from_secs(100), 3);
    assert_eq!(served(&terminators), ["b.example"]);
    // Even if the folder is removed, a certificate is served.
    fs::remove_dir_all(folder.path("certs")).unwrap();
    look(&terminators, begun + Duration::from_secs(200), 3);
    assert_eq!(served(&terminators), ["b.example"]);
}

#[test]
fn unwatched_files_change_with_a_reload_only() {
    let folder = Folder::new();
    let pair = folder.write_pair("a", &made(&["old.example"]));
    let unwatched = Tls { watch_interval_ms: 0, ..tls(vec![pair_of(&pair.cert, &pair.key)]) };
    let listeners = [listener(unwatched)];
    let terminators = Terminators::default();
    terminators.switch(&terminators.plan(&listeners).unwrap());
    folder.write_pair("a", &made(&["new.example"]));
    look(&terminators, Instant::now(), 3);
    assert_eq!(served(&terminators), ["old.example"]);
    let planned = terminators.plan(&listeners).unwrap();
    assert_eq!(served(&terminators), ["old.example"], "it is not in effect yet");
    terminators.switch(&planned);
    assert_eq!(served(&terminators), ["new.example"]);
}

#[test]
fn unchanged_files_are_not_read_again() {
    let folder = Folder::new();
    let pair = folder.write_pair("a", &made(&["a.example"]));
    let terminators = serving(vec![pair_of(&pair.cert, &pair.key)]);
    let listeners = [listener(tls(vec![pair_of(&pair.cert, &pair.key)]))];
    let before = terminators.certificates();
    der(&terminators, &listeners);
    terminators.switch(&terminators.plan(&listeners).unwrap());
    assert!(Arc::ptr_eq(&before[0].1, &terminators.certificates()[0].1));
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let folder = Folder::new();
    let pair = folder.write_pair("a", &made(&["a.example"]));
    let mut broken = tls(vec![
        pair_of(&pair.cert, &pair.key),
        pair_of(&folder.path("none.pem"), &pair.key),
        CertificateFiles::Folder(folder.path("nowhere")),
    ]);
    broken.client_auth =
        ClientAuth { mode: ClientAuthMode::Required, ca_file: Some(folder.write("ca.pem", "no")) };
    fs::create_dir(folder.path("empty")).unwrap();
    let empty = tls(vec![CertificateFiles::Folder(folder.path("empty"))]);
    let (broken, empty) = (listener(broken), Listener { name: "other".into(), ..listener(empty) });
    let said = Terminators::default().plan(&[broken, empty]).map(drop).unwrap_err();
    let said = said.to_string();
    let lines: Vec<&str> = said.lines().collect();
    let expected = [
        ("listeners[0].tls.certificates[1]: ", "none.pem: cannot be read"),
        ("listeners[0].tls.certificates[2]: ", "nowhere: cannot be read"),
        ("listeners[0].tls.client_auth: ", "ca.pem: contains no certificate"),
        ("listeners[1].tls.certificates: ", "there is no certificate to serve"),
    ];
    assert_eq!(lines.len(), expected.len(), "{said}");
    for (line, (path, what)) in lines.iter().zip(expected) {
        assert!(line.starts_with(path) && line.contains(what), "{line}");
    }
}
