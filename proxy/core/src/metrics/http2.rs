//! HTTP/2 metrics: connections, their streams, and why connections were closed.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::encode::{Rows, count};
use super::{Abuse, Event, State};

impl State {
    pub(super) fn http2(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let event = |event| self.sum_event(event);
        let mut rows = Rows { encoder, prefix: "sluice_http2_" };
        let help = "Downstream connections that used HTTP/2.";
        rows.counter("connections", help, event(Event::Http2Opened))?;
        rows.counter("streams", "Streams opened on HTTP/2 connections.", event(Event::Http2Stream))?;
        let help = "Streams reset because their head cannot be expressed in HTTP/1.1.";
        rows.counter("streams_malformed", help, event(Event::Http2Malformed))?;
        let help = "HTTP/2 connections closed for a protocol violation.";
        rows.counter("protocol_errors", help, event(Event::Http2ProtocolError))?;
        let help = "HTTP/2 connections closed for abuse, by kind.";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("sluice_http2_abuses", help, None, kind)?;
        for (index, abuse) in Abuse::ALL.iter().enumerate() {
            count(&mut family.encode_family(&[("reason", abuse.word())])?, self.sum_abuses(index))?;
        }
        Ok(())
    }
}
