//! Spans on their way to a collector (OTLP over HTTP): built of what exchanges hand over, encoded, and sent.

mod collector;
mod encode;
mod export;
#[cfg(test)]
mod tests;

pub(crate) use export::Tracing;
