//! The same metrics in Prometheus's older text format (0.0.4), for clients that do not request OpenMetrics.
//!
//! It differs in the comments: a counter's family has the name of its samples, and there are no units and no EOF. There
//! is no info type either: an info metric is a gauge with value 1.

/// Content type of this format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Converts OpenMetrics text.
pub fn from_open_metrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // The name depends on the type, which is on the next line.
            help = rest;
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                other => ("", other),
            };
            if let Some((_, help)) = help.split_once(' ') {
                out.extend(["# HELP ", name, suffix, " ", help, "\n"]);
            }
            out.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if !line.starts_with('#') {
            out.extend([line, "\n"]);
        }
    }
    out
}

/// Whether an `Accept` field prefers OpenMetrics. `*/*` accepts either and gets the older format, which every tool
/// reads.
pub fn wants_open_metrics(accept: &str) -> bool {
    let mut open = 0.0;
    let mut classic = 0.0;
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let quality =
            parts.find_map(|part| part.strip_prefix("q=")).map_or(1.0, |q| q.parse().unwrap_or(0.0));
        if kind.eq_ignore_ascii_case("application/openmetrics-text") {
            open = f64::max(open, quality);
        } else if ["text/plain", "text/*", "*/*"].iter().any(|other| kind.eq_ignore_ascii_case(other)) {
            classic = f64::max(classic, quality);
        }
    }
    open > 0.0 && open >= classic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_converted_and_samples_stay() {
        let open = "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total{x=\"# y\"} 1\n\
                    # HELP b The program.\n# TYPE b info\nb_info{version=\"1\"} 1\n\
                    # HELP c Now.\n# TYPE c gauge\nc -1\n# EOF\n";
        let classic = "# HELP a_seconds_total Time.\n# TYPE a_seconds_total counter\na_seconds_total{x=\"# y\"} 1\n\
                       # HELP b_info The program.\n# TYPE b_info gauge\nb_info{version=\"1\"} 1\n\
                       # HELP c Now.\n# TYPE c gauge\nc -1\n";
        assert_eq!(from_open_metrics(open), classic);
    }

    #[test]
    fn a_client_that_requests_open_metrics_gets_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert!(wants_open_metrics(prometheus));
        assert!(wants_open_metrics("Application/OpenMetrics-Text"));
        for other in
            ["", "*/*", "text/plain", "text/html,*/*;q=0.8", "application/openmetrics-text;q=0", ";q=x,,"]
        {
            assert!(!wants_open_metrics(other), "{other}");
        }
        assert!(!wants_open_metrics("application/openmetrics-text;q=0.2, text/plain;q=0.9"));
    }
}
