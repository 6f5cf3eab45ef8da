//! The fields that tell an application about a client's certificate.

use rcgen::DnType;

use super::super::ClientIdentity;
use super::*;

fn told(der: &[u8]) -> Vec<(String, String)> {
    let identity = ClientIdentity::new(Some(&[der.to_vec().into()]));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    identity.fields().iter().map(|(name, value)| (text(name), text(value))).collect()
}

#[test]
fn name_issuer_and_fingerprint_are_forwarded() {
    let (issuer, _) = authority("Root");
    let mut client = params(&[]);
    client.distinguished_name = rcgen::DistinguishedName::new();
    client.distinguished_name.push(DnType::CountryName, "AT");
    client.distinguished_name.push(DnType::OrganizationName, "Bär & Söhne, \"GmbH\"");
    client.distinguished_name.push(DnType::CommonName, " #1\r\nX-Admin: yes");
    client.serial_number = Some(0x0102_aabb_u64.into());
    let made = signed(&client, &issuer);
    let fields = told(&made.der);
    let value = |name: &str| fields.iter().find(|field| field.0 == name).unwrap().1.as_str();
    assert_eq!(value("X-Client-Cert-Verified"), "SUCCESS");
    let subject = r"CN=\20#1\0D\0AX-Admin: yes,O=B\C3\A4r & S\C3\B6hne\2C \22GmbH\22,C=AT";
    assert_eq!(value("X-Client-Cert-Subject"), subject);
    assert_eq!(value("X-Client-Cert-Issuer"), "CN=Root");
    assert_eq!(value("X-Client-Cert-Serial"), "0102AABB");
    assert_eq!(value("X-Client-Cert-Fingerprint").len(), 64);
    assert!(fields.iter().all(|(_, value)| value.bytes().all(|byte| (b' '..=b'~').contains(&byte))));
}

#[test]
fn without_a_certificate_only_the_verification_result_is_forwarded() {
    let none = ClientIdentity::new(None);
    assert_eq!(none.fields(), [(&b"X-Client-Cert-Verified"[..], b"NONE".to_vec())]);
    assert_eq!(ClientIdentity::new(Some(&[])), none);
    assert_eq!(ClientIdentity::new(Some(&[vec![1, 2, 3].into()])), none);
}
