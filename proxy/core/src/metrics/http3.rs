//! HTTP/3 metrics: connections, their streams, and why connections were closed.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::encode::{Rows, count};
use super::{Event, State};

impl State {
    pub(super) fn http3(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let event = |event| self.sum_event(event);
        let mut rows = Rows { encoder, prefix: "sluice_http3_" };
        rows.counter("connections", "Connections that used HTTP/3.", event(Event::Http3Opened))?;
        rows.counter("streams", "Streams opened on HTTP/3 connections.", event(Event::Http3Stream))?;
        let help = "HTTP/3 requests reset because they are malformed.";
        rows.counter("streams_malformed", help, event(Event::Http3Malformed))?;
        let help = "HTTP/3 connections closed for a protocol violation.";
        rows.counter("protocol_errors", help, event(Event::Http3ProtocolError))?;
        let help = "HTTP/3 clients that had to prove their address before their handshake.";
        rows.counter("retries", help, event(Event::Http3Retried))?;
        let help = "HTTP/3 clients that were refused: too many connections or handshakes, or a shutdown.";
        rows.counter("refused", help, event(Event::Http3Refused))?;
        let help = "Changes of a client's address during an HTTP/3 connection.";
        rows.counter("migrations", help, event(Event::Http3Migrated))?;
        let help =
            "HTTP/3 requests that arrived before the handshake was complete, and were answered at once.";
        rows.counter("early_requests", help, event(Event::Http3Early))?;
        let help = "HTTP/3 requests that arrived before the handshake was complete, and had to wait for it.";
        rows.counter("early_requests_delayed", help, event(Event::Http3EarlyWaited))?;
        let help = "HTTP/3 datagrams that a worker passed to another one, or to another process.";
        rows.counter("datagrams_forwarded", help, event(Event::Http3Forwarded))?;
        rows.counter("packets_sent", "Packets sent on HTTP/3 connections.", event(Event::Http3PacketsSent))?;
        let help = "Packets sent on HTTP/3 connections and lost on their way.";
        rows.counter("packets_lost", help, event(Event::Http3PacketsLost))?;
        rows.counter("connections_ended", "HTTP/3 connections that have ended.", event(Event::Http3Closed))?;
        let help = "The last round-trip times of HTTP/3 connections that have ended, in sum.";
        rows.seconds("rtt", help, event(Event::Http3RttUs) as f64 / 1e6)?;
        let help = "HTTP/3 connections closed for abuse, by kind.";
        let mut family = encoder.encode_descriptor("sluice_http3_abuses", help, None, MetricType::Counter)?;
        for (reason, kind) in [
            ("resets", Event::Http3Resets),
            ("control_frames", Event::Http3ControlFrames),
            ("paths", Event::Http3Paths),
            ("unread_frames", Event::Http3Unread),
            ("faults", Event::Http3Faults),
        ] {
            count(&mut family.encode_family(&[("reason", reason)])?, self.sum_event(kind))?;
        }
        Ok(())
    }
}
