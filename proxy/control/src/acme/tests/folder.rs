//! Stored files and their permissions.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rcgen::{CertificateParams, KeyPair};

use super::super::folder::Folder;
use super::{Scratch, config};

fn folder(scratch: &Scratch, directory: &str) -> Folder {
    let acme = format!(", directory: '{directory}'");
    let listener = "{address: '127.0.0.1:443', tls: {acme: {names: [a.example]}}}";
    let config = config(&scratch.0, &acme, listener);
    let folder = Folder::of(&config, config.acme.as_ref().unwrap()).unwrap();
    folder.make().unwrap();
    folder
}

/// A chain and its key.
fn pem(name: &str) -> String {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
    format!("{}{}", certificate.pem(), key.serialize_pem())
}

#[test]
fn stored_certificates_are_found_again() {
    let scratch = Scratch::new();
    let folder = folder(&scratch, "staging");
    assert!(folder.certificate("a.example").is_none());
    let kept = folder.keep("a.example", &pem("a.example")).unwrap();
    assert_eq!(kept.source, "acme staging");
    let found = folder.certificate("a.example").unwrap();
    assert_eq!(found.certified.cert, kept.certified.cert);
    folder.keep("*.b.example", &pem("*.b.example")).unwrap();
    assert!(folder.certificate("*.b.example").is_some());
    assert_eq!(folder.names(10), ["a.example"], "on-demand names are never wildcards");
    folder.forget("a.example");
    assert!(folder.certificate("a.example").is_none());
}

#[test]
fn a_bad_certificate_never_replaces_a_good_one() {
    let scratch = Scratch::new();
    let folder = folder(&scratch, "production");
    let good = folder.keep("a.example", &pem("a.example")).unwrap();
    let other = folder.keep("a.example", &pem("b.example")).unwrap_err();
    assert!(other.to_string().contains("not for a.example"), "{other}");
    let (chain, key) = (pem("a.example"), pem("a.example"));
    let mixed =
        [chain.split("-----BEGIN PRIVATE").next().unwrap(), &key[key.find("-----BEGIN PRIVATE").unwrap()..]];
    assert!(
        folder.keep("a.example", &mixed.concat()).unwrap_err().to_string().contains("the key does not match")
    );
    assert!(folder.keep("a.example", "nothing").is_err());
    assert_eq!(folder.certificate("a.example").unwrap().certified.cert, good.certified.cert);
    let root = scratch.0.join("production");
    assert_eq!(fs::read_dir(root.join("certificates")).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn only_the_owner_can_read_the_folder() {
    let scratch = Scratch::new();
    let root = scratch.0.join("production");
    fs::create_dir_all(&root).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    let folder = folder(&scratch, "production");
    folder.keep("a.example", &pem("a.example")).unwrap();
    folder.keep_account(b"{}").unwrap();
    let mode = |name: &str| fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("certificates")), (0o700, 0o700));
    assert_eq!((mode("account.json"), mode("certificates/a.example.pem")), (0o600, 0o600));
}

#[test]
fn only_one_process_holds_the_lock() {
    let scratch = Scratch::new();
    let folder = folder(&scratch, "production");
    let lock = folder.lock().unwrap().unwrap();
    assert!(folder.lock().unwrap().is_none());
    drop(lock);
    assert!(folder.lock().unwrap().is_some());
}

#[test]
fn authorities_use_separate_folders() {
    let scratch = Scratch::new();
    let first = folder(&scratch, "https://ca.example/a/b");
    let second = folder(&scratch, "https://ca.example/a_b");
    assert_ne!(first, second);
    assert!(first.authority.starts_with("ca.example_a_b-"), "{}", first.authority);
}
