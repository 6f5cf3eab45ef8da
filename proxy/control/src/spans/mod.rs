//! Exports spans to a collector (OTLP over HTTP): built from finished exchanges, encoded, and sent.

mod collector;
mod encode;
mod export;
#[cfg(test)]
mod tests;

pub(crate) use export::Tracing;
