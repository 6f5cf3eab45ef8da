//! Renewals that the authority advises (ARI, RFC 9773).

use std::fs;

use super::pebble::{Kind, Pebble, Ports, look};
use super::{attempts, issued, setup};
use crate::support::{Origin, poll};

const AT_ONCE: &str =
    r#"{"suggestedWindow": {"start": "2021-01-03T00:00:00Z", "end": "2021-01-07T00:00:00Z"}}"#;

#[test]
fn a_certificate_about_to_be_revoked_is_replaced() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    let start = || setup(&origin, ports, pebble.config(), &["a.example", "b.example"]).start();
    let Some(proxy) = start() else { return };
    let (first, other) = (issued(ports, "a.example"), issued(ports, "b.example"));
    drop(proxy);
    let folder = fs::read_dir(pebble.path("state")).unwrap().next().unwrap().unwrap().path();
    let pem = |name: &str| fs::read_to_string(folder.join(format!("certificates/{name}.pem"))).unwrap();
    pebble.set_renewal_info(&pem("a.example"), AT_ONCE);
    pebble.set_renewal_info(&pem("b.example"), "nonsense");

    let proxy = start().unwrap();
    let second = poll("a renewed certificate", || {
        let shown = look(ports.tls, "a.example").unwrap();
        assert!(shown.is_issued_for("a.example"), "never without a certificate: {shown:?}");
        (shown != first).then_some(shown)
    });
    assert_eq!(proxy.said("the authority advises an earlier renewal"), 1);
    // Even if the authority advises it again, no other certificate is ordered within the hour.
    pebble.set_renewal_info(&pem("a.example"), AT_ONCE);
    assert_eq!((attempts(&proxy, "issued"), attempts(&proxy, "failed")), (1.0, 0.0));
    assert_eq!(
        (look(ports.tls, "a.example").unwrap(), look(ports.tls, "b.example").unwrap()),
        (second, other)
    );
    assert!(
        pebble.log().contains("is a replacement of"),
        "the authority knows what was replaced: {}",
        pebble.log()
    );
}
