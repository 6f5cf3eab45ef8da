#!/usr/bin/env python3
"""Compares sluice with nginx as a proxy before one nginx origin: interleaved rounds in one run.

    bench/compare.py --sluice target/release/sluice --out bench/results/NAME [--rounds 7] [--seconds 5]
                     [--sizes 1kb,64kb,1mb] [--connections 50]

Each round drives direct, nginx and sluice one after the other with `wrk -t1`, in an order that rotates. It
records requests per second, latency percentiles, errors, the CPU time of the whole machine per request
(/proc/stat, all modes but idle and iowait) and the peak memory of each proxy. The ratios are medians of the
ratios within a round, so what disturbs the machine for longer than a round disturbs both sides.

Every server and the client run in a session of their own, as services do: with autogroup scheduling a session
has its share of the processor, and who shares one with the client would be slowed down for it.

Needs nginx and wrk. Everything runs on 127.0.0.1 and is ended by its pid.
"""
import argparse, json, os, platform, re, shutil, socket, statistics, subprocess, tempfile, time

SIZES = {"1kb": 1024, "64kb": 65536, "1mb": 1048576}

ORIGIN = """worker_processes 1; pid {d}/origin.pid; error_log {d}/origin.err; daemon off;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 10000000; sendfile on; tcp_nopush on; tcp_nodelay on;
  open_file_cache max=100 inactive=1h; open_file_cache_valid 1h;
  server {{ listen 127.0.0.1:{port} backlog=4096; root {d}/html; }} }}
"""
# As nginx's documentation advises for a proxy: keep-alive to the upstream, HTTP/1.1, no access log.
PROXY = """worker_processes 2; pid {d}/proxy.pid; error_log {d}/proxy.err; daemon off;
events {{ worker_connections 8192; }}
http {{ access_log off; keepalive_requests 10000000; tcp_nodelay on;
  upstream origin {{ server 127.0.0.1:{origin}; keepalive 100; keepalive_requests 10000000; }}
  server {{ listen 127.0.0.1:{port} reuseport backlog=4096;
    location / {{ proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection ""; }} }} }}
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port):
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nothing answers on port {port}")


def machine_cpu():
    fields = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def peak_kb(pid):
    total = 0
    for p in [pid] + [int(c) for c in open(f"/proc/{pid}/task/{pid}/children").read().split()]:
        total += int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{p}/status").read()).group(1))
    return total


def wrk(port, size, args):
    before, started = machine_cpu(), time.time()
    command = ["wrk", "-t1", f"-c{args.connections}", f"-d{args.seconds}", "--latency", f"http://127.0.0.1:{port}/{size}"]
    out = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True).stdout
    cpu = machine_cpu() - before
    number = lambda pattern: float(re.search(pattern, out).group(1))
    unit = {"us": 1, "ms": 1000, "s": 1000000}
    percentile = lambda p: (lambda m: float(m.group(1)) * unit[m.group(2)])(re.search(rf"{p}%\s+([\d.]+)(us|ms|s)", out))
    requests = number(r"(\d+) requests in")
    errors = sum(int(x) for x in re.findall(r"(?:connect|read|write|timeout) (\d+)", out)) + sum(
        int(x) for x in re.findall(r"Non-2xx or 3xx responses: (\d+)", out))
    return {"req_s": number(r"Requests/sec:\s+([\d.]+)"), "p50_us": percentile(50), "p99_us": percentile(99),
            "cpu_us_per_request": cpu * 1e6 / requests, "errors": errors, "seconds": time.time() - started}


def facts(args):
    version = lambda *c: subprocess.run(c, capture_output=True, text=True)
    first = lambda r: (r.stdout + r.stderr).strip().splitlines()[0]
    model = re.search(r"model name\s*:\s*(.*)", open("/proc/cpuinfo").read())
    return {"kernel": platform.release(), "cpu": model.group(1) if model else platform.machine(),
            "cpus": os.cpu_count(), "nginx": first(version("nginx", "-v")), "wrk": first(version("wrk", "-v")),
            "sluice": first(version(args.sluice, "version")), "load_before": os.getloadavg(),
            "date": time.strftime("%Y-%m-%d"), "connections": args.connections, "seconds": args.seconds}


def run(args, directory):
    os.mkdir(f"{directory}/html")
    os.chmod(directory, 0o755)
    for size, length in SIZES.items():
        with open(f"{directory}/html/{size}", "wb") as f:
            f.write(os.urandom(length))
    ports = {name: free_port() for name in ("direct", "nginx", "sluice")}
    for name, text in (("origin", ORIGIN), ("proxy", PROXY)):
        with open(f"{directory}/{name}.conf", "w") as f:
            port = ports["direct" if name == "origin" else "nginx"]
            f.write(text.format(d=directory, port=port, origin=ports["direct"]))
    running = {}
    try:
        for name, conf in (("direct", "origin"), ("nginx", "proxy")):
            running[name] = subprocess.Popen(["nginx", "-p", directory, "-c", f"{directory}/{conf}.conf"], start_new_session=True)
        running["sluice"] = subprocess.Popen(
            [args.sluice, "run", "--listen", f"127.0.0.1:{ports['sluice']}", "--to", f"127.0.0.1:{ports['direct']}",
             "--workers", "2", "--admin", "off", "--set", "access_log=off"], stderr=subprocess.DEVNULL, start_new_session=True)
        for port in ports.values():
            wait_for(port)
        rounds = []
        result = {"facts": facts(args), "rounds": rounds}
        for number in range(args.rounds):
            for size in args.sizes.split(","):
                names = list(ports)
                names = names[number % 3:] + names[:number % 3]
                rounds.append({"size": size, **{name: wrk(ports[name], size, args) for name in names}})
                print(size, {n: round(rounds[-1][n]["req_s"]) for n in ports}, flush=True)
        result["peak_kb"] = {name: peak_kb(process.pid) for name, process in running.items()}
        return result
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def table(result):
    lines = ["| size | | direct | nginx | sluice | sluice / nginx (median of ratios, min-max) |", "|---|---|---|---|---|---|"]
    for size in dict.fromkeys(r["size"] for r in result["rounds"]):
        rounds = [r for r in result["rounds"] if r["size"] == size]
        for key, name in (("req_s", "req/s"), ("p50_us", "p50 us"), ("p99_us", "p99 us"), ("cpu_us_per_request", "machine CPU us/request")):
            mid = {n: statistics.median(r[n][key] for r in rounds) for n in ("direct", "nginx", "sluice")}
            ratios = [r["sluice"][key] / r["nginx"][key] for r in rounds]
            lines.append(f"| {size} | {name} | {mid['direct']:.0f} | {mid['nginx']:.0f} | {mid['sluice']:.0f} "
                         f"| {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) |")
    errors = {n: sum(r[n]["errors"] for r in result["rounds"]) for n in ("direct", "nginx", "sluice")}
    lines += ["", f"Errors: {errors}. Peak memory in KB: {result['peak_kb']}.", f"Machine: {result['facts']}."]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sluice", default="target/release/sluice")
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--sizes", default="1kb,64kb,1mb")
    parser.add_argument("--connections", type=int, default=50)
    args = parser.parse_args()
    for tool in ("nginx", "wrk"):
        if not shutil.which(tool):
            raise SystemExit(f"{tool} is needed")
    with tempfile.TemporaryDirectory() as directory:
        result = run(args, directory)
    print(table(result))
    if args.out:
        os.makedirs(args.out, exist_ok=True)
        with open(f"{args.out}/raw.json", "w") as f:
            json.dump(result, f, indent=1)
        with open(f"{args.out}/README.md", "w") as f:
            f.write(f"`bench/compare.py --rounds {args.rounds} --seconds {args.seconds} --sizes {args.sizes} "
                    f"--connections {args.connections}`\n\n{table(result)}\n")


main()
