#!/usr/bin/env python3
"""What other programs pay while sluice joins its own connections: wrk directly on an nginx, with and without sluice.

    bench/neighbours.py --sluice target/release/sluice [--rounds 9] [--seconds 4] [--out bench/results/neighbours]

Needs root, eBPF, nginx and wrk. Each round measures, in an order that rotates, wrk directly on the nginx while

  absent   no sluice runs
  idle     sluice is attached (kernel.bypass: required) and has no connection
  pooled   sluice is attached and holds joined connections to that nginx, idle

on keep-alive connections (the sockets are in no map of the programs) and on new ones (the programs see every
connection that the machine establishes). Ratios are taken within a round against `absent`. Their medians, with the
smallest and the largest, go to table.md, and the output of wrk to raw.json. The limit is 3 %. A second `absent` in each
round, called `control`, shows the noise of the machine.
"""
import argparse, json, os, re, shutil, signal, socket, statistics, subprocess, sys, tempfile, time, urllib.request

STATES = ["absent", "idle", "pooled", "control"]
LOADS = {
    "1 KB, kept": ["1kb.bin"],
    "64 KB, kept": ["64kb.bin"],
    "1 KB, new connections": ["1kb.bin", "-H", "Connection: close"],
}
FILES = {"1kb.bin": 1 << 10, "64kb.bin": 64 << 10}
POOLED = 32
NGINX = """daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    {temp}
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 100000000;
    keepalive_timeout 600s;
    server {{ listen 127.0.0.1:{port} backlog=4096; root {folder}; }}
}}
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(what, condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds} s")
        time.sleep(0.02)


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def program(name):
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    return found or sys.exit(f"{name} is missing")


def stop(process):
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start_nginx(folder):
    port = free_port()
    for name, size in FILES.items():
        with open(f"{folder}/{name}", "wb") as file:
            file.write(bytes(i * 31 & 0xFF for i in range(size)))
    built = subprocess.run([program("nginx"), "-V"], capture_output=True, text=True).stderr
    temp = "".join(
        f"{module}_temp_path {folder}/{module};"
        for module in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        if f"--without-http_{module}_module" not in built
    )
    user = "user root;" if os.geteuid() == 0 else ""
    with open(f"{folder}/nginx.conf", "w") as file:
        file.write(NGINX.format(user=user, folder=folder, temp=temp, port=port))
    # A separate session, as services have: with autogroup scheduling each session has its share of the processor.
    command = [program("nginx"), "-p", folder, "-c", f"{folder}/nginx.conf"]
    process = subprocess.Popen(command, start_new_session=True)
    wait_for("nginx", lambda: accepts(port))
    return process, port


class Sluice:
    """A sluice that must join its connections to the nginx."""

    def __init__(self, binary, mode, origin, folder):
        self.port, self.admin = free_port(), free_port()
        self.log = open(f"{folder}/sluice.log", "w")
        command = [binary, "run", "--listen", f"127.0.0.1:{self.port}", "--to", f"127.0.0.1:{origin}"]
        command += ["--admin", f"127.0.0.1:{self.admin}", "--set", f"kernel.bypass={mode}", "--set", "access_log=off"]
        # Idle connections must stay open during the measurement.
        command += ["--set", "clusters.default.pool.idle_timeout_ms=600000"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, start_new_session=True)
        wait_for("sluice", self.ready)

    def ready(self):
        if self.process.poll() is not None:
            raise SystemExit(open(self.log.name).read())
        return accepts(self.port) and accepts(self.admin)

    def pairs(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("sluice_bypass_pairs_joined_total"))

    def fill_pool(self):
        """Leaves sluice with idle joined connections."""
        wrk(self.port, ["1kb.bin"], 1, connections=POOLED)
        return self.pairs()

    def stop(self):
        stop(self.process)
        self.log.close()


def wrk(port, load, seconds, connections=50):
    path, *args = load
    command = [program("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", *args]
    command.append(f"http://127.0.0.1:{port}/{path}")
    return subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True).stdout


def milliseconds(text):
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()
    return float(number) * {"us": 0.001, "ms": 1, "s": 1000}[unit]


def figures(report):
    for line in ["Non-2xx", "Socket errors"]:
        if line in report:
            raise SystemExit(f"wrk: {report}")
    value = lambda pattern: re.search(pattern, report, re.M).group(1)
    return {
        "requests_per_second": float(value(r"^Requests/sec:\s+([\d.]+)")),
        "p50_ms": milliseconds(value(r"^\s+50%\s+(\S+)")),
        "p99_ms": milliseconds(value(r"^\s+99%\s+(\S+)")),
    }


def measure(args, state, origin, folder):
    sluice, pairs = None, 0
    try:
        if state in ("idle", "pooled"):
            sluice = Sluice(args.sluice, args.bypass, origin, folder)
        if state == "pooled":
            pairs = sluice.fill_pool()
            if args.bypass == "required" and not pairs:
                raise SystemExit("sluice joined no connection: nothing to measure")
        samples = []
        for name, load in LOADS.items():
            report = wrk(origin, load, args.seconds)
            samples.append({"state": state, "load": name, "pairs": pairs, "report": report, **figures(report)})
        return samples
    finally:
        if sluice:
            sluice.stop()


def table(samples, args):
    lines = [
        "# Neighbours of a sluice that joins its own connections",
        "",
        f"wrk straight at one nginx, medians of {args.rounds} interleaved rounds of {args.seconds} s; ratios within a",
        "round to the same without sluice, median (smallest to largest). `control` is without sluice once more.",
        "",
        f"    bench/neighbours.py --sluice target/release/sluice --rounds {args.rounds} --seconds {args.seconds}",
        "",
        "| load | state | requests/s | ratio | p50, ms | ratio | p99, ms | ratio |",
        "|---|---|---:|---|---:|---|---:|---|",
    ]
    for load in LOADS:
        base = {s["round"]: s for s in samples if s["load"] == load and s["state"] == "absent"}
        for state in STATES:
            mine = [s for s in samples if s["load"] == load and s["state"] == state]
            cells = []
            for key, digits in [("requests_per_second", 0), ("p50_ms", 3), ("p99_ms", 3)]:
                cells.append(f"{statistics.median(s[key] for s in mine):.{digits}f}")
                ratios = [s[key] / base[s["round"]][key] for s in mine]
                spread = f"{statistics.median(ratios):.3f} ({min(ratios):.2f}-{max(ratios):.2f})"
                cells.append("" if state == "absent" else spread)
            lines.append(f"| {load} | {state} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--bypass", default="required", help="off shows what a sluice costs that joins nothing")
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "results/neighbours"))
    args = parser.parse_args()
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        nginx, origin = start_nginx(folder)
        try:
            wrk(origin, ["1kb.bin"], 2)
            for number in range(args.rounds):
                turn = number % len(STATES)
                for state in STATES[turn:] + STATES[:turn]:
                    samples += [{"round": number, **s} for s in measure(args, state, origin, folder)]
                print(f"round {number + 1} of {args.rounds}", flush=True)
        finally:
            stop(nginx)
    os.makedirs(args.out, exist_ok=True)
    machine = {"kernel": os.uname().release, "cores": os.cpu_count(), "load": os.getloadavg()}
    with open(f"{args.out}/raw.json", "w") as file:
        json.dump({"machine": machine, "samples": samples}, file, indent=1)
        file.write("\n")
    text = table(samples, args)
    with open(f"{args.out}/table.md", "w") as file:
        file.write(text)
    print(text)


main()
