//! Tests that need no authority; `proxy/sluice/tests/it/acme` has the others.
#![allow(clippy::unwrap_used)]

mod folder;
mod listeners;
mod times;
mod ways;

use std::path::PathBuf;

use sluice_config::{Acme, Config};
use sluice_core::tls::Certificate;

use super::made;

/// A configuration with these listeners that stores everything in `folder`.
fn config(folder: &std::path::Path, acme: &str, listeners: &str) -> Config {
    let text = format!(
        "acme: {{terms_agreed: true, state_folder: '{}'{acme}}}\nlisteners: [{listeners}]\n\
         clusters: {{a: {{endpoints: ['127.0.0.1:1']}}}}\n",
        folder.display()
    );
    sluice_config::parse("test.yaml", &text, &[]).unwrap()
}

fn acme() -> Acme {
    Acme::default()
}

/// A certificate of this validity in seconds of Unix time.
fn certificate(not_before: i64, not_after: i64) -> Certificate {
    let made = made::placeholder("a.example").unwrap();
    Certificate { not_before, not_after, ..Certificate::new(made, "acme test".to_owned()).unwrap() }
}

/// A folder that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let unique = format!("sluice-acme-{}-{:x}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
