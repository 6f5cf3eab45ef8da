//! qlog files.

use std::fs;

use serde_json::{Value, json};

use super::raw::{control, exchange, frame, head};
use super::{raw, start};
use crate::support::{Origin, Setup, poll};

#[test]
fn connections_are_recorded() {
    let folder = std::env::temp_dir().join(format!("sluice-it-{}-qlog", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let qlog = json!({"folder": folder, "sample_ratio": 1});
    let Some(site) = start(Setup::to_origin(&Origin::saying("secret")).with("qlog", qlog)) else { return };
    site.run(async || {
        let (endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        exchange(&connection, &head("GET", "/", &[])).await.unwrap();
        connection.close(raw::code(0x100), b"");
        endpoint.wait_idle().await;
    });
    let records = poll("the recording", || {
        let path = fs::read_dir(&folder).unwrap().next()?.unwrap().path();
        let text = fs::read_to_string(path).unwrap();
        let records = text.split('\x1e').skip(1).map(|record| serde_json::from_str::<Value>(record).ok());
        let records = records.collect::<Option<Vec<_>>>()?;
        records
            .iter()
            .any(|record| record["name"].as_str().is_some_and(|name| name.ends_with("packet_received")))
            .then_some(records)
    });
    assert!(records[0]["qlog_version"].is_string(), "{}", records[0]);
    assert!(records[0]["title"].as_str().unwrap().starts_with("main from 127.0.0.1:"), "{}", records[0]);
    assert!(records.iter().all(|record| !record.to_string().contains("secret")));
    fs::remove_dir_all(folder).unwrap();
}
