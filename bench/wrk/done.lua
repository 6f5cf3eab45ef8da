-- Prints the result of a run as one line of JSON, with p99.9 and the curve, which `wrk --latency` does not print.
-- Only `done` is defined, so this script costs nothing while requests run.
function done(summary, latency, requests)
  local points = { 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 97.5, 99, 99.5, 99.9, 99.95, 99.99 }
  local curve = {}
  for i, p in ipairs(points) do
    curve[i] = string.format("[%g,%d]", p, latency:percentile(p))
  end
  local e = summary.errors
  io.write(string.format(
    'summary {"requests":%d,"duration_us":%d,"failed":%d,"bad_status":%d,"latency_us":[%s]}\n',
    summary.requests, summary.duration, e.connect + e.read + e.write + e.timeout, e.status,
    table.concat(curve, ",")))
end
