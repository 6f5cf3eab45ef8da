//! What `/metrics` has of HTTP/2: connections, their streams, and why connections were ended.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::encode::{Rows, count};
use super::{Abuse, Event, State};

impl State {
    pub(super) fn http2(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let event = |event| self.sum_event(event);
        let mut rows = Rows { encoder, prefix: "sluice_http2_" };
        let help = "Downstream connections that spoke HTTP/2.";
        rows.counter("connections", help, event(Event::Http2Opened))?;
        rows.counter("streams", "Streams opened on them.", event(Event::Http2Stream))?;
        let help = "Streams reset for a head that HTTP/1.1 could not say.";
        rows.counter("streams_malformed", help, event(Event::Http2Malformed))?;
        let help = "HTTP/2 connections ended for breaking the protocol.";
        rows.counter("protocol_errors", help, event(Event::Http2ProtocolError))?;
        let help = "HTTP/2 connections ended for what they asked for, by what it was.";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("sluice_http2_abuses", help, None, kind)?;
        for (index, abuse) in Abuse::ALL.iter().enumerate() {
            count(&mut family.encode_family(&[("reason", abuse.word())])?, self.sum_abuses(index))?;
        }
        Ok(())
    }
}
