//! What is read from files, and the errors for malformed ones.

use rcgen::{CertificateParams, DnType, date_time_ymd};

use super::super::folder::pairs;
use super::super::now_unix_s;
use super::*;

fn says(pair: &Pair) -> String {
    load(pair, now_unix_s()).unwrap_err().to_string()
}

fn warnings(pair: &Pair) -> Vec<String> {
    load(pair, now_unix_s()).unwrap().1
}

#[test]
fn names_are_those_of_the_certificate_in_lower_case() {
    let folder = Folder::new();
    let pair = folder.write_pair("a", &made(&["A.example", "*.b.example", "127.0.0.1"]));
    let (certificate, warnings) = load(&pair, now_unix_s()).unwrap();
    assert_eq!(certificate.names, ["a.example", "*.b.example", "127.0.0.1"]);
    assert_eq!(warnings, Vec::<String>::new());
    assert!(certificate.is_valid_at(now_unix_s()));
}

#[test]
fn the_common_name_counts_only_without_alternative_names() {
    let folder = Folder::new();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Old.example");
    let pair = folder.write_pair("a", &make(&params));
    assert_eq!(load(&pair, now_unix_s()).unwrap().0.names, ["old.example"]);
}

#[test]
fn unusable_files_are_reported_by_name() {
    let folder = Folder::new();
    let good = folder.write_pair("a", &made(&["a.example"]));
    let other = folder.write_pair("b", &made(&["a.example"]));
    let with_cert = |name: &str, text: &[u8]| Pair { cert: folder.write(name, text), ..good.clone() };
    let with_key = |name: &str, text: &[u8]| Pair { key: folder.write(name, text), ..good.clone() };
    let cases = [
        (Pair { cert: folder.path("none.pem"), ..good.clone() }, "none.pem: cannot be read: No such file"),
        (Pair { cert: folder.0.clone(), ..good.clone() }, ": is not a file"),
        (with_cert("text.pem", b"hello"), "text.pem: contains no certificate"),
        (with_cert("der.pem", &made(&["a.example"]).der), "der.pem: is DER; write PEM"),
        (with_cert("cut.pem", b"-----BEGIN CERTIFICATE-----\nMIIB\n"), "cut.pem: is malformed"),
        (
            with_cert("junk.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "junk.pem: ",
        ),
        (with_key("text.key", b"hello"), "text.key: contains no key"),
        (
            with_key(
                "locked.key",
                b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            ),
            "locked.key: the key is encrypted",
        ),
        (Pair { key: other.key.clone(), ..good.clone() }, "b.key: the key does not match"),
    ];
    for (pair, expected) in cases {
        let said = says(&pair);
        assert!(said.contains(expected), "{expected}: {said}");
        assert!(said.starts_with(folder.0.to_str().unwrap()), "{said}");
    }
}

#[test]
fn certificate_and_key_may_be_in_one_file() {
    let folder = Folder::new();
    let made = made(&["a.example"]);
    let file = folder.write("both.pem", made.chain_pem.clone() + &made.key.serialize_pem());
    let pair = Pair { cert: file.clone(), key: file, ocsp: None };
    assert_eq!(load(&pair, now_unix_s()).unwrap().0.first_name(), "a.example");
}

#[test]
fn an_expired_certificate_is_served_with_a_warning() {
    let folder = Folder::new();
    let mut old = params(&["a.example"]);
    (old.not_before, old.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
    let said = warnings(&folder.write_pair("old", &make(&old)));
    assert!(said.len() == 1 && said[0].contains("old.pem: expired"), "{said:?}");
    let mut early = params(&["a.example"]);
    (early.not_before, early.not_after) = (date_time_ymd(2200, 1, 1), date_time_ymd(2201, 1, 1));
    let said = warnings(&folder.write_pair("early", &make(&early)));
    assert!(said.len() == 1 && said[0].contains("early.pem: is not valid for another"), "{said:?}");
}

#[test]
fn a_chain_without_a_known_root_is_a_warning() {
    let folder = Folder::new();
    let (issuer, root) = authority("Nobody's root");
    let leaf = signed(&params(&["a.example"]), &issuer);
    let said = warnings(&folder.write_pair("leaf", &leaf));
    assert!(said.len() == 1 && said[0].contains("the certificate of its issuer"), "{said:?}");
    assert!(said[0].contains("Nobody's root"), "{said:?}");
    let whole = Made { chain_pem: leaf.chain_pem.clone() + &root.pem(), ..leaf };
    assert_eq!(warnings(&folder.write_pair("whole", &whole)), Vec::<String>::new());
    let stranger = made(&["b.example"]).chain_pem;
    let mixed = Made { chain_pem: format!("{}{stranger}", whole.chain_pem.clone()), ..whole };
    let said = warnings(&folder.write_pair("mixed", &mixed));
    assert!(said.len() == 1 && said[0].contains("put them in order"), "{said:?}");
}

#[test]
fn a_world_readable_key_is_a_warning() {
    let folder = Folder::new();
    let pair = folder.write_pair("a", &made(&["a.example"]));
    fs::set_permissions(&pair.key, fs::Permissions::from_mode(0o644)).unwrap();
    let said = warnings(&pair);
    assert!(said.len() == 1 && said[0].contains("the key is world-readable"), "{said:?}");
}

#[test]
fn only_a_valid_ocsp_response_is_stapled() {
    let folder = Folder::new();
    let pair = folder.write_pair("a", &made(&["a.example"]));
    let response = [0x30, 0x03, 0x0a, 0x01, 0x00];
    let with = |bytes: &[u8]| Pair { ocsp: Some(folder.write("a.ocsp", bytes)), ..pair.clone() };
    let (certificate, said) = load(&with(&response), now_unix_s()).unwrap();
    assert_eq!((certificate.certified.ocsp.as_deref(), said.len()), (Some(&response[..]), 0));
    for bad in [&b"not found"[..], b"", &[0x30, 0x03, 0x0a, 0x01, 0x06]] {
        let (certificate, said) = load(&with(bad), now_unix_s()).unwrap();
        assert_eq!(certificate.certified.ocsp, None);
        assert!(said[0].contains("a.ocsp: is not a successful OCSP response"), "{said:?}");
    }
}

#[test]
fn pairs_in_a_folder_are_found_by_name_and_in_certbots_layout() {
    let folder = Folder::new();
    for name in [
        "b.pem",
        "b.key",
        "a.crt",
        "a.key",
        "a.ocsp",
        "chain.pem",
        "README",
        "live.example/fullchain.pem",
        "live.example/privkey.pem",
        "live.example/cert.pem",
        "live.example/chain.pem",
        ".hidden/fullchain.pem",
        ".hidden/privkey.pem",
        "c/deep/x.pem",
        "c/deep/x.key",
    ] {
        folder.write(name, "");
    }
    let found = pairs(&folder.0).unwrap();
    let names: Vec<_> =
        found.iter().map(|pair| pair.cert.strip_prefix(&folder.0).unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["a.crt", "b.pem", "live.example/fullchain.pem"]);
    assert_eq!(found[0].ocsp, Some(folder.path("a.ocsp")));
    assert_eq!(found[2].key, folder.path("live.example/privkey.pem"));
    assert!(pairs(&folder.path("none")).unwrap_err().to_string().contains("none: cannot be read"));
}
