//! Tests of the configuration, from YAML text to values and messages.
#![allow(clippy::unwrap_used)]

mod acme;
mod disk;
mod docs;
mod files;
mod mistakes;
mod mistakes_of_routes;
mod passthrough;
mod read;
mod round_trip;
mod schema;
mod setting;
mod syntax;
mod tls;
mod tracing;
mod upstream_tls;

use super::{Config, Override, parse};

/// A file without mistakes, to which tests append their own lines.
const GOOD: &str = "listeners: [{address: '127.0.0.1:80'}]\nclusters:\n  api: {endpoints: ['10.0.0.1:80']}\n";

fn read(text: &str) -> Config {
    let config = parse("c.yaml", text, &[]).unwrap();
    schema::takes(text);
    config
}

fn read_with(text: &str, sets: &[&str]) -> Config {
    parse("c.yaml", text, &overrides(sets)).unwrap()
}

fn overrides(sets: &[&str]) -> Vec<Override> {
    sets.iter().map(|set| set.parse().unwrap()).collect()
}

/// The mistakes as text.
fn mistakes(text: &str) -> Vec<String> {
    mistakes_with(text, &[])
}

fn mistakes_with(text: &str, sets: &[&str]) -> Vec<String> {
    let error = parse("c.yaml", text, &overrides(sets)).unwrap_err();
    if sets.is_empty() {
        schema::refuses(text, &error);
    }
    error.to_string().lines().map(str::to_owned).collect()
}
