//! What the figures of a Puma's stages mean: a line where they allow one. Pure.

use super::report::Report;

/// Fewer requests say nothing.
const REQUESTS_MIN: u64 = 50;
/// From this share of the service time on, threads mostly sleep; up to the other, they mostly compute.
const ASLEEP_PERCENT_MIN: u64 = 70;
const ASLEEP_PERCENT_MAX: u64 = 30;
/// A wait that people notice, in microseconds.
const WAIT_US: u64 = 5_000;

/// Advice on the counts of `puma_stages`.
pub(super) fn advice(report: &Report) -> Vec<String> {
    let [accept, queue, service, handed] =
        ["accept_wait_us", "request_queue_us", "service_us", "handed_over_us"]
            .map(|name| report.histogram(name));
    let requests = service.count() + handed.count();
    if requests < REQUESTS_MIN {
        return vec![format!(
            "{requests} requests were watched, too few for advice; try --one-in 1 or more --seconds"
        )];
    }
    let mut lines = Vec::new();
    let p50 = |one: &super::report::Histogram| one.percentile(50).unwrap_or(0);
    let is_waiting = p50(&accept) >= WAIT_US && p50(&accept) > p50(&service);
    let is_queued = p50(&handed) > 2 * p50(&service).max(1) && handed.count() * 2 > requests;
    if is_waiting {
        lines.push(
            "All threads are busy: half of the new connections wait longer to be accepted than a request takes. \
             Limit what reaches the application (max_in_flight: auto), then add threads or processes."
                .to_owned(),
        );
    } else if is_queued {
        lines.push(
            "Requests wait inside Puma for a thread. Set max_in_flight to Puma's threads, so that they wait in sluice, \
             which serves the newest first under overload."
                .to_owned(),
        );
    } else if p50(&queue) >= WAIT_US {
        lines.push(
            "Requests wait to be read: the application accepts more connections than it can serve."
                .to_owned(),
        );
    } else {
        lines.push("No stage waits: there are threads to spare.".to_owned());
    }
    let total = u64::try_from(report.value("service_total_us")).unwrap_or(0);
    let asleep = u64::try_from(report.value("service_asleep_us")).unwrap_or(0);
    if let Some(share) = (asleep * 100).checked_div(total) {
        lines.push(match share {
            ASLEEP_PERCENT_MIN.. => format!(
                "Threads sleep {share} % of the service time, for a lock, a database or another service: more threads help."
            ),
            ..=ASLEEP_PERCENT_MAX => {
                format!("Threads compute {} % of the service time: more processes help, up to the cores.", 100 - share)
            }
            _ => format!("Threads sleep {share} % of the service time and compute the rest."),
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(accept: u64, service: u64, handed: (u64, u64), asleep: u64) -> Report {
        let mut report = Report::default();
        let histogram = |low: u64, count: u64| json!([{"min": low, "max": low * 2 - 1, "count": count}]);
        report.add(&json!({"type": "hist", "data": {"@accept_wait_us": histogram(accept, 40)}}));
        report.add(&json!({"type": "hist", "data": {"@service_us": histogram(service, 60)}}));
        report.add(&json!({"type": "hist", "data": {"@handed_over_us": histogram(handed.0, handed.1)}}));
        report.add(&json!({"type": "map", "data": {"@service_total_us": 1000}}));
        report.add(&json!({"type": "map", "data": {"@service_asleep_us": asleep * 10}}));
        report
    }

    #[test]
    fn each_bottleneck_gets_its_line() {
        for (counts, expected) in [
            (report(32_768, 128, (1, 0), 95), ["All threads are busy", "more threads help"]),
            (report(16, 128, (65_536, 90), 10), ["Requests wait inside Puma", "more processes help"]),
            (report(16, 128, (1, 0), 50), ["No stage waits", "compute the rest"]),
        ] {
            let lines = advice(&counts);
            assert!(lines.iter().zip(expected).all(|(line, part)| line.contains(part)), "{lines:?}");
        }
        assert!(advice(&Report::default())[0].contains("too few"));
    }
}
