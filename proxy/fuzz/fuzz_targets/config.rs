//! Any text as a configuration: it is read or refused, never a panic, and one in force reads back to an equal one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_config::{parse, to_json, to_yaml};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let config = match parse("fuzz.yaml", text, &[]) {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "a mistake without a word");
            return;
        }
    };
    let yaml = to_yaml(&config);
    match parse("again.yaml", &yaml, &[]) {
        Ok(again) => assert_eq!(again, config, "{yaml}"),
        Err(error) => panic!("what we print is refused: {error}\n{yaml}"),
    }
    assert!(to_json(&config).is_object());
});
