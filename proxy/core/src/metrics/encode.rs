//! The names, help texts and label sets of all exported metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::process::Process;
use super::series::{CLASSES, HistogramTotal, Labels, Total};
use super::{Event, Missed, State};
use crate::budget::Medium;
use crate::error::Reason;
use crate::record::BodyPath;

type Totals = BTreeMap<Arc<Labels>, Total>;

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.retire();
        let totals = self.sum_series();
        requests(&mut encoder, &totals)?;
        durations(&mut encoder, &totals)?;
        bytes(&mut encoder, &totals)?;
        self.downstream(&mut encoder)?;
        self.workers(&mut encoder)?;
        self.upstream(&mut encoder)?;
        self.tunnels(&mut encoder)?;
        self.splices(&mut encoder)?;
        self.direct(&mut encoder)?;
        self.caches(&mut encoder)?;
        self.encodings(&mut encoder)?;
        self.http2(&mut encoder)?;
        self.http3(&mut encoder)?;
        self.protocols(&mut encoder)?;
        self.paths(&mut encoder)?;
        self.failures(&mut encoder)?;
        self.held(&mut encoder)?;
        self.handshakes(&mut encoder)?;
        self.spans.encode(&mut encoder)?;
        self.status().encode(&mut encoder)?;
        Process::read().encode(&mut encoder)?;
        if let Some(name) = self.engine.get() {
            let help = "The engine of the workers (runtime).";
            let mut engine = encoder.encode_descriptor("sluice_engine", help, None, MetricType::Info)?;
            engine.encode_info(&[("engine", *name)])?;
        }
        let mut build =
            encoder.encode_descriptor("sluice_build", "Build information.", None, MetricType::Info)?;
        build.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])
    }
}

impl State {
    fn downstream(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let event = |event| self.sum_event(event);
        let rejected = event(Event::DownstreamRejected);
        let open = self.sum_open(Event::DownstreamAccepted, Event::DownstreamClosed);
        let mut rows = Rows { encoder, prefix: "sluice_downstream_" };
        let help = "Downstream connections accepted.";
        rows.counter("connections", help, event(Event::DownstreamAccepted))?;
        let help = "Downstream connections refused by a limit.";
        rows.counter("connections_rejected", help, rejected)?;
        let help = "Downstream connections handed from the accepting worker to another worker.";
        rows.counter("connections_handed", help, event(Event::DownstreamHanded))?;
        let help = "Downstream connections moved to another worker between two requests.";
        rows.counter("connections_moved", help, event(Event::DownstreamMoved))?;
        let help = "Requests on a downstream connection that had carried a request before.";
        rows.counter("requests_reused", help, event(Event::DownstreamReused))?;
        rows.gauge("connections_open", "Downstream connections open.", open)
    }

    fn workers(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let mut rows = Rows { encoder, prefix: "sluice_workers_" };
        let batch = self.sum_open(Event::BatchBegun, Event::BatchEnded);
        rows.gauge("batch", "Workers that run as batch threads now (worker_scheduling).", batch)?;
        let help = "Times that a worker left batch scheduling because it waited too long for its core.";
        rows.counter("batch_left", help, self.sum_event(Event::BatchEnded))?;
        let placed = self.sum_open(Event::PlaceBegun, Event::PlaceEnded);
        rows.gauge("placed", "Workers that stay on a core of their own now (worker_placement).", placed)?;
        let resting = self.sum_open(Event::RestBegun, Event::RestEnded);
        let help = "Workers that rest because one serves all connections while requests are queued.";
        rows.gauge("resting", help, resting)?;
        let open = self.connections_of_workers();
        let help = "Open downstream connections of the worker that has the fewest.";
        rows.gauge("connections_min", help, open.iter().copied().min().unwrap_or_default())?;
        let help = "Open downstream connections of the worker that has the most.";
        rows.gauge("connections_max", help, open.iter().copied().max().unwrap_or_default())
    }

    fn upstream(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let event = |event| self.sum_event(event);
        let idle = self.sum_open(Event::UpstreamParked, Event::UpstreamUnparked);
        let open = self.sum_open(Event::UpstreamOpened, Event::UpstreamClosed);
        let mut rows = Rows { encoder, prefix: "sluice_upstream_connections_" };
        rows.counter("opened", "Upstream connections opened.", event(Event::UpstreamOpened))?;
        rows.counter(
            "reused",
            "Exchanges on a connection from the idle pool.",
            event(Event::UpstreamReused),
        )?;
        rows.counter("closed", "Upstream connections closed.", event(Event::UpstreamClosed))?;
        rows.gauge("idle", "Upstream connections in the idle pools.", idle)?;
        rows.gauge("open", "Upstream connections open, idle ones included.", open)?;
        let help = "TLS handshakes with endpoints: full, or resumed.";
        let name = "sluice_upstream_tls_handshakes";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        count(&mut family.encode_family(&[("kind", "full")])?, event(Event::UpstreamTlsFull))?;
        count(&mut family.encode_family(&[("kind", "resumed")])?, event(Event::UpstreamTlsResumed))
    }

    fn tunnels(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let opened = self.sum_event(Event::TunnelOpened);
        let open = self.sum_open(Event::TunnelOpened, Event::TunnelClosed);
        let mut rows = Rows { encoder, prefix: "sluice_tunnels_" };
        rows.counter("opened", "Tunnels opened.", opened)?;
        rows.gauge("open", "Tunnels open.", open)?;
        let help = "Bytes tunnelled, by destination.";
        let to_upstream = self.sum_event(Event::TunnelBytesToUpstream);
        let to_downstream = self.sum_event(Event::TunnelBytesToDownstream);
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("sluice_tunnel", help, Some(&Unit::Bytes), kind)?;
        count(&mut family.encode_family(&[("to", "upstream")])?, to_upstream)?;
        count(&mut family.encode_family(&[("to", "downstream")])?, to_downstream)
    }

    fn splices(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let event = |event| self.sum_event(event);
        let mut rows = Rows { encoder, prefix: "sluice_splice_" };
        rows.counter("tunnels", "Tunnels spliced by the kernel.", event(Event::TunnelSpliced))?;
        rows.counter(
            "failures",
            "Tunnels copied because they could not be spliced.",
            event(Event::SpliceFailed),
        )?;
        let help = "Spliced tunnels reset because their byte counts did not match.";
        rows.counter("mismatches", help, event(Event::SpliceMismatch))?;
        let kind = MetricType::Counter;
        let help = "Bytes forwarded by the kernel; they are included in the bytes tunnelled.";
        let mut bytes = encoder.encode_descriptor("sluice_splice", help, Some(&Unit::Bytes), kind)?;
        count(&mut bytes, event(Event::TunnelBytesSpliced))?;
        let help = "Directions of spliced tunnels that fell back to copying, by reason.";
        let mut family = encoder.encode_descriptor("sluice_splice_returns", help, None, kind)?;
        for (reason, n) in [
            ("budget", event(Event::SpliceReturnedBudget)),
            ("no_peer", event(Event::SpliceReturnedPeer)),
            ("closed", event(Event::SpliceReturnedDrain)),
        ] {
            count(&mut family.encode_family(&[("reason", reason)])?, n)?;
        }
        Ok(())
    }

    fn direct(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Responses that went from the application to the client directly (direct return).";
        let mut rows = Rows { encoder, prefix: "sluice_direct_return_" };
        rows.counter("exchanges", help, self.sum_event(Event::DirectReturned))?;
        let help =
            "Responses over joined connections without direct return, or with it for a part only, by reason.";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("sluice_direct_return_missed", help, None, kind)?;
        for (index, reason) in Missed::names().enumerate() {
            count(&mut family.encode_family(&[("reason", reason)])?, self.sum_missed(index))?;
        }
        Ok(())
    }

    fn caches(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Responses of routes with a cache: from it (hit, stale, revalidated), or from the application (stored, \
                    missed, bypassed).";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("sluice_cache_responses", help, None, kind)?;
        for (result, event) in [
            ("hit", Event::CacheHit),
            ("stale", Event::CacheStale),
            ("revalidated", Event::CacheRevalidated),
            ("stored", Event::CacheStored),
            ("missed", Event::CacheMissed),
            ("bypassed", Event::CacheBypassed),
        ] {
            count(&mut family.encode_family(&[("result", result)])?, self.sum_event(event))?;
        }
        Ok(())
    }

    fn encodings(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Responses encoded by sluice (compress), by coding.";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("sluice_compressed_responses", help, None, kind)?;
        for (coding, event) in
            [("gzip", Event::EncodedGzip), ("zstd", Event::EncodedZstd), ("br", Event::EncodedBrotli)]
        {
            count(&mut family.encode_family(&[("coding", coding)])?, self.sum_event(event))?;
        }
        let help = "Responses that were not encoded although their client takes it, by reason: the worker's time \
                    (cpu_percent_max) or the memory (memory_max).";
        let mut family = encoder.encode_descriptor("sluice_compression_refused", help, None, kind)?;
        for (reason, event) in [("busy", Event::EncodingBusy), ("memory", Event::EncodingFull)] {
            count(&mut family.encode_family(&[("reason", reason)])?, self.sum_event(event))?;
        }
        Ok(())
    }

    fn paths(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Exchanges and tunnels ended, by the path of their bytes.";
        let mut family =
            encoder.encode_descriptor("sluice_path_exchanges", help, None, MetricType::Counter)?;
        for path in BodyPath::ALL {
            count(&mut family.encode_family(&[("path", path.word())])?, self.sum_path(path).0)?;
        }
        let help = "Bytes of clients' requests and responses, by path.";
        let mut family =
            encoder.encode_descriptor("sluice_path", help, Some(&Unit::Bytes), MetricType::Counter)?;
        for path in BodyPath::ALL {
            count(&mut family.encode_family(&[("path", path.word())])?, self.sum_path(path).1)?;
        }
        let help = "Upstream connections that could not be joined, and endpoints for which joining was paused, by reason.";
        let mut family =
            encoder.encode_descriptor("sluice_bypass_refused", help, None, MetricType::Counter)?;
        for (reason, event) in [
            ("incomplete", Event::BypassIncomplete),
            ("unmarked", Event::BypassUnmarked),
            ("stalled", Event::BypassStalled),
        ] {
            count(&mut family.encode_family(&[("reason", reason)])?, self.sum_event(event))?;
        }
        Ok(())
    }

    fn held(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Files created for buffered bodies.";
        let mut rows = Rows { encoder, prefix: "sluice_spool_" };
        rows.counter("files", help, self.budget.files_made())?;
        for (name, help, place) in [
            ("sluice_spool", "Bytes of bodies buffered in files.", Medium::Spool),
            ("sluice_buffer_memory", "Bytes of bodies buffered in memory.", Medium::Memory),
        ] {
            let mut gauge = encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?;
            gauge.encode_gauge(&self.budget.bytes(place))?;
        }
        Ok(())
    }

    fn failures(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Exchanges and connections that failed, by reason and by the side at fault.";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("sluice_errors", help, None, kind)?;
        for (index, reason) in Reason::ALL.iter().enumerate() {
            let labels = [("reason", reason.word()), ("side", reason.side().word())];
            count(&mut family.encode_family(&labels)?, self.sum_errors(index))?;
        }
        let panics = self.panics.load(Relaxed);
        let dropped = self.access_log_dropped.load(Relaxed);
        let mut rows = Rows { encoder, prefix: "sluice_" };
        rows.counter("retries", "Request attempts after the first.", self.sum_retries())?;
        rows.counter("panics", "Panics. Each ended one connection.", panics)?;
        rows.counter("access_log_dropped", "Access log lines lost.", dropped)?;
        let help = "Lines of sluice's own log lost because they could not be written in time.";
        rows.counter("log_dropped", help, crate::logging::dropped_lines())
    }
}

fn requests(encoder: &mut DescriptorEncoder, totals: &Totals) -> fmt::Result {
    let help = "Exchanges ended, by status class.";
    let mut family = encoder.encode_descriptor("sluice_requests", help, None, MetricType::Counter)?;
    for (labels, total) in totals {
        for (class, n) in CLASSES.into_iter().zip(total.requests) {
            // The usual classes start at zero, so that a rate includes their first request; the others are rare.
            if n == 0 && matches!(class, "1xx" | "other") {
                continue;
            }
            let [route, cluster, endpoint] = label_pairs(labels);
            count(&mut family.encode_family(&[route, cluster, endpoint, ("class", class)])?, n)?;
        }
    }
    Ok(())
}

fn durations(encoder: &mut DescriptorEncoder, totals: &Totals) -> fmt::Result {
    let help = "Time from the first byte of a request to the last byte of its response.";
    histograms(encoder, "sluice_request_duration", help, totals, |total| &total.duration)?;
    let help = "Time in the cluster's queue, before an endpoint was picked.";
    histograms(encoder, "sluice_queue_duration", help, totals, |total| &total.queue)?;
    let help = "Time to open an upstream connection. Exchanges on a pooled connection are not counted.";
    histograms(encoder, "sluice_connect_duration", help, totals, |total| &total.connect)?;
    let help = "Time from sending the request upstream to the first byte of the response.";
    histograms(encoder, "sluice_upstream_duration", help, totals, |total| &total.upstream)?;
    let help = "Time from the first byte of the response to its last byte.";
    histograms(encoder, "sluice_transfer_duration", help, totals, |total| &total.transfer)
}

fn histograms(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    totals: &Totals,
    select: fn(&Total) -> &HistogramTotal,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
    for (labels, total) in totals {
        let histogram = select(total);
        let labels = label_pairs(labels);
        let mut metric = family.encode_family(&labels)?;
        metric.encode_histogram::<NoLabelSet>(
            histogram.sum(),
            histogram.count(),
            &histogram.buckets(),
            None,
        )?;
    }
    Ok(())
}

fn bytes(encoder: &mut DescriptorEncoder, totals: &Totals) -> fmt::Result {
    let help = "Body bytes read from clients.";
    let mut family =
        encoder.encode_descriptor("sluice_request_body", help, Some(&Unit::Bytes), MetricType::Counter)?;
    for (labels, total) in totals {
        count(&mut family.encode_family(&label_pairs(labels))?, total.bytes_in)?;
    }
    let help = "Bytes written to clients.";
    let mut family =
        encoder.encode_descriptor("sluice_response", help, Some(&Unit::Bytes), MetricType::Counter)?;
    for (labels, total) in totals {
        count(&mut family.encode_family(&label_pairs(labels))?, total.bytes_out)?;
    }
    Ok(())
}

fn label_pairs(labels: &Labels) -> [(&'static str, &str); 3] {
    [("route", &labels.route), ("cluster", &labels.cluster), ("endpoint", &labels.endpoint)]
}

pub(super) fn count(metric: &mut MetricEncoder, n: u64) -> fmt::Result {
    metric.encode_counter::<NoLabelSet, u64, f64>(&n, None)
}

/// Metrics without labels that share a name prefix.
pub(super) struct Rows<'a, 'b> {
    pub(super) encoder: &'a mut DescriptorEncoder<'b>,
    pub(super) prefix: &'static str,
}

impl Rows<'_, '_> {
    /// The encoder appends `_total` to the name.
    pub(super) fn counter(&mut self, name: &str, help: &str, n: u64) -> fmt::Result {
        let name = format!("{}{name}", self.prefix);
        count(&mut self.encoder.encode_descriptor(&name, help, None, MetricType::Counter)?, n)
    }

    /// The encoder appends `_seconds_total` to the name.
    pub(super) fn seconds(&mut self, name: &str, help: &str, seconds: f64) -> fmt::Result {
        let name = format!("{}{name}", self.prefix);
        let unit = Some(&Unit::Seconds);
        let mut metric = self.encoder.encode_descriptor(&name, help, unit, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, f64, f64>(&seconds, None)
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, n: u64) -> fmt::Result {
        let name = format!("{}{name}", self.prefix);
        self.encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?.encode_gauge(&n)
    }
}
