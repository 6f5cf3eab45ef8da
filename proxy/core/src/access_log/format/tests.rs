//! Lines of known exchanges, and of hostile exchanges.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use sluice_config::LogOutput;

use super::*;
use crate::error::Reason;

const ALL: [LogField; 24] = [
    LogField::Time,
    LogField::RequestId,
    LogField::Listener,
    LogField::Client,
    LogField::Method,
    LogField::Host,
    LogField::Target,
    LogField::Protocol,
    LogField::Status,
    LogField::Route,
    LogField::Cluster,
    LogField::Endpoint,
    LogField::BytesIn,
    LogField::BytesOut,
    LogField::DurationMs,
    LogField::QueueMs,
    LogField::ConnectMs,
    LogField::UpstreamMs,
    LogField::TransferMs,
    LogField::Path,
    LogField::Retries,
    LogField::Reason,
    LogField::UserAgent,
    LogField::Referer,
];

fn line(format: LogFormat, fields: &[LogField], record: &ExchangeRecord<'_>) -> String {
    let config = config::AccessLog {
        output: LogOutput::Stdout,
        format,
        fields: fields.to_vec(),
        variables: Vec::new(),
    };
    let mut out = Vec::new();
    Formatter::new(&config).line(&mut out, record);
    String::from_utf8(out).unwrap()
}

#[test]
fn json_has_every_field_in_order() {
    let expected = concat!(
        r#"{"time":"2026-11-21T10:00:00.042Z","request_id":"id-1","listener":"web","client":"192.0.2.7","#,
        r#""method":"GET","host":"example.com","target":"/a?b=c","protocol":"HTTP/1.1","status":200,"#,
        r#""route":"app","cluster":"puma","endpoint":"127.0.0.1:3000","bytes_in":0,"bytes_out":512,"#,
        r#""duration_ms":12.345,"queue_ms":0.000,"connect_ms":null,"upstream_ms":9.001,"transfer_ms":3.000,"path":"copy","#,
        r#""retries":0,"reason":null,"user_agent":"curl/8","referer":null}"#,
        "\n"
    );
    assert_eq!(line(LogFormat::Json, &ALL, &ExchangeRecord::sample()), expected);
    assert_eq!(line(LogFormat::Json, &[], &ExchangeRecord::sample()), "{}\n");
}

#[test]
fn ltsv_has_labels_and_tabs() {
    let fields = [LogField::Client, LogField::Status, LogField::ConnectMs, LogField::Reason];
    let record = ExchangeRecord {
        client: "2001:db8::1".parse().unwrap(),
        status: 504,
        connect: Some(Duration::from_micros(20)),
        reason: Some(Reason::ResponseTimeout),
        ..ExchangeRecord::sample()
    };
    let expected = "client:2001:db8::1\tstatus:504\tconnect_ms:0.020\treason:response_timeout\n";
    assert_eq!(line(LogFormat::Ltsv, &fields, &record), expected);
    assert_eq!(line(LogFormat::Ltsv, &[LogField::Referer], &record), "referer:-\n");
}

#[test]
fn combined_names_the_user_in_one_word() {
    for (user, wanted) in [("", "- - ["), ("ann", "- ann ["), ("CN=Ann Lee \"x", "- CN=Ann_Lee_\\\"x [")] {
        let record = ExchangeRecord { user, ..ExchangeRecord::sample() };
        let line = line(LogFormat::Combined, &[], &record);
        assert!(line.contains(wanted), "{line}");
    }
}

#[test]
fn combined_matches_apache() {
    let expected = concat!(
        r#"192.0.2.7 - - [21/Nov/2026:10:00:00 +0000] "GET /a?b=c HTTP/1.1" 200 512 "-" "curl/8""#,
        "\n"
    );
    assert_eq!(line(LogFormat::Combined, &[], &ExchangeRecord::sample()), expected);
    let unread = ExchangeRecord {
        method: b"",
        target: b"",
        status: 408,
        bytes_out: 0,
        user_agent: b"\"\\\r\n",
        ..ExchangeRecord::sample()
    };
    let expected =
        concat!(r#"192.0.2.7 - - [21/Nov/2026:10:00:00 +0000] "-" 408 - "-" "\"\\\x0d\x0a""#, "\n");
    assert_eq!(line(LogFormat::Combined, &[], &unread), expected);
}

#[test]
fn fields_of_a_service_come_last() {
    let fields = [("req_x_a", b"a\"\t".to_vec()), ("resp_b", Vec::new())];
    let record = ExchangeRecord { fields: &fields, ..ExchangeRecord::sample() };
    let own = r#""req_x_a":"a\"\u0009","resp_b":"""#;
    assert_eq!(line(LogFormat::Json, &[LogField::Status], &record), format!("{{\"status\":200,{own}}}\n"));
    assert_eq!(line(LogFormat::Json, &[], &record), format!("{{{own}}}\n"));
    assert_eq!(
        line(LogFormat::Ltsv, &[LogField::Status], &record),
        "status:200\treq_x_a:a\"\\x09\tresp_b:-\n"
    );
    let combined = line(LogFormat::Combined, &[], &record);
    assert_eq!(combined, line(LogFormat::Combined, &[], &ExchangeRecord::sample()));
}

/// Arbitrary bytes, biased towards bytes that are special in a format.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let sharp = prop::sample::select(b"\"\\\n\r\t\0\x1b: {}\x7f\x80\xc3\xff".to_vec());
    let byte = prop_oneof![any::<u8>(), sharp];
    prop_oneof![prop::collection::vec(byte, 0..40), any::<String>().prop_map(String::into_bytes)]
}

fn is_one_line_of_printable_ascii(line: &str) -> bool {
    line.strip_suffix('\n').is_some_and(|line| line.bytes().all(|b| matches!(b, b' '..=b'~' | b'\t')))
}

proptest! {
    #[test]
    fn hostile_bytes_do_not_break_any_format(
        values in prop::collection::vec(hostile(), 6),
        name in any::<String>(),
        micros in any::<u64>(),
    ) {
        let record = ExchangeRecord {
            method: &values[0],
            host: &values[1],
            target: &values[2],
            request_id: &values[3],
            user_agent: &values[4],
            referer: &values[5],
            route: Some((1, &name)),
            duration: Duration::from_micros(micros),
            ..ExchangeRecord::sample()
        };
        let json = line(LogFormat::Json, &ALL, &record);
        prop_assert!(json.strip_suffix('\n').unwrap().chars().all(|c| !c.is_control()));
        let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(parsed.as_object().unwrap().len(), ALL.len());
        if let Ok(text) = std::str::from_utf8(&values[2]) && !text.is_empty() {
            prop_assert_eq!(parsed["target"].as_str(), Some(text));
        }

        let ltsv = line(LogFormat::Ltsv, &ALL, &record);
        prop_assert!(is_one_line_of_printable_ascii(&ltsv));
        prop_assert_eq!(ltsv.split('\t').count(), ALL.len());
        for (pair, field) in ltsv.split('\t').zip(ALL) {
            prop_assert_eq!(pair.split(':').next(), Some(field.word()));
        }

        let combined = line(LogFormat::Combined, &[], &record);
        prop_assert!(is_one_line_of_printable_ascii(&combined) && !combined.contains('\t'));
        // Quotes without a preceding backslash are those of the format: three pairs.
        let plain = combined.replace("\\\\", "").replace("\\\"", "");
        prop_assert_eq!(plain.matches('"').count(), 6);
    }
}
