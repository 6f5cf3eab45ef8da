//! Any text as a configuration: it is accepted or refused without a panic, and a printed configuration reads back as
//! equal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_config::{parse, to_json, to_yaml};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let config = match parse("fuzz.yaml", text, &[]) {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "an error without a message");
            return;
        }
    };
    let yaml = to_yaml(&config);
    match parse("again.yaml", &yaml, &[]) {
        Ok(again) => assert_eq!(again, config, "{yaml}"),
        Err(error) => panic!("printed configuration is refused: {error}\n{yaml}"),
    }
    assert!(to_json(&config).is_object());
});
