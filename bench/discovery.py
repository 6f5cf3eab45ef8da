#!/usr/bin/env python3
"""What a thousand changes of endpoints a second cost the requests of others, with a real etcd.

    bench/discovery.py --sluice target/release/sluice [--rounds 6] [--seconds 10] [--out DIR]

etcd has 60 endpoints, all of them ports of one nginx. A round loads a sluice with one worker by wrk over 8 connections in
three ways, in an order that rotates: "watched" while a thousand keys a second change below the prefix that sluice watches
(weights, and endpoints that leave and come back, a hundred in each transaction); "elsewhere" while the same changes happen
below another prefix, so that only sluice's part differs; "quiet" without any. The result is the median of the ratios of each
round, with the smallest and the largest.
"""
import argparse, base64, contextlib, json, os, random, re, statistics, subprocess, sys, tempfile, threading, time
import urllib.request

from measuring import free_port, spent
from running import end_on_signal, program, sluice

ENDPOINTS, CHANGES, BATCHES_A_SECOND = 60, 100, 10
WAYS = ["watched", "elsewhere", "quiet"]
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def ask(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)


def put(prefix, number, ports, weight):
    value = json.dumps({"address": f"127.0.0.1:{ports[number]}", "weight": weight})
    return {"request_put": {"key": encoded(f"{prefix}{number:03}"), "value": encoded(value)}}


def batch(prefix, ports):
    """Each key once at most in a transaction, as etcd asks; so the endpoints have several keys."""
    changes = []
    for number in random.sample(range(len(ports)), CHANGES):
        if number >= ENDPOINTS // 2 and random.random() < 0.3:
            changes.append({"request_delete_range": {"key": encoded(f"{prefix}{number:03}")}})
        else:
            changes.append(put(prefix, number, ports, random.randint(1, 10)))
    return {"success": changes}


class Changes(threading.Thread):
    """Changes below a prefix, until it is stopped."""
    def __init__(self, port, prefix, ports):
        super().__init__(daemon=True)
        self.port, self.prefix, self.ports, self.ends, self.made = port, prefix, ports, threading.Event(), 0

    def run(self):
        due = time.monotonic()
        while not self.ends.is_set():
            ask(self.port, "/v3/kv/txn", batch(self.prefix, self.ports))
            self.made += CHANGES
            due += 1 / BATCHES_A_SECOND
            self.ends.wait(max(0, due - time.monotonic()))

    def stop(self):
        self.ends.set()
        self.join()


def load(pid, port, seconds):
    before = spent(pid)
    command = ["wrk", "--latency", "-t", "1", "-c", "8", "-d", f"{seconds}s", f"http://127.0.0.1:{port}/"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    requests = int(re.search(r"(\d+) requests in", said).group(1))
    if "Non-2xx" in said or "Socket errors" in said or not requests:
        sys.exit(said)
    def of(share):
        number, unit = re.search(rf"{share}%\s+([\d.]+)(us|ms|s)", said).groups()
        return float(number) * {"us": 1, "ms": 1e3, "s": 1e6}[unit]
    return {"requests_per_s": requests / seconds, "p50_us": of(50), "p99_us": of(99),
            "cpu_us": (spent(pid) - before) / requests * 1e6}


def nginx(folder, ports):
    listen = "".join(f"listen 127.0.0.1:{port};" for port in sorted(set(ports)))
    kinds = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    with open(folder + "/nginx.conf", "w") as file:
        file.write(f"user root; daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log; events {{ "
                   f"worker_connections 4096; }} http {{ access_log off; keepalive_requests 1000000000; {kinds} server {{ "
                   f"{listen} location / {{ return 200 hello; }} }} }}")
    return program(["nginx", "-p", folder, "-c", folder + "/nginx.conf", "-e", folder + "/error.log"])


def etcd(folder, client, peer):
    urls = [f"http://127.0.0.1:{port}" for port in (client, peer)]
    return program(["etcd", "--data-dir", folder + "/etcd", "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
                    "--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1], "--initial-cluster",
                    f"default={urls[1]}", "--auto-compaction-retention", "1000", "--auto-compaction-mode", "revision"],
                   **SILENT)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    end_on_signal()
    with contextlib.ExitStack() as started:
        folder = started.enter_context(tempfile.TemporaryDirectory())
        os.chmod(folder, 0o755)
        endpoints = [free_port() for _ in range(ENDPOINTS)]
        # Two keys for each endpoint: a batch changes more keys than there are endpoints.
        ports = endpoints + endpoints
        started.enter_context(nginx(folder, endpoints))
        client, peer = free_port(), free_port()
        started.enter_context(etcd(folder, client, peer))
        for _ in range(100):
            with contextlib.suppress(OSError):
                for prefix in ("/watched/", "/elsewhere/"):
                    ask(client, "/v3/kv/txn", {"success": [put(prefix, number, ports, 1) for number in range(len(ports))]})
                break
            time.sleep(0.1)
        discover = {"etcd": {"endpoints": [f"http://127.0.0.1:{client}"], "prefix": "/watched/"}}
        config = {"clusters": {"app": {"discover": discover}}, "admin": {"address": f"127.0.0.1:{free_port()}"}}
        admin = config["admin"]["address"]
        process, port = started.enter_context(sluice(arguments.sluice, config, folder, "sluice"))
        # Its log is a pipe, which must be read.
        threading.Thread(target=lambda: [None for _ in process.stderr], daemon=True).start()
        metric = lambda: float(re.search(r"sluice_discovery_updates_total\S* (\d+)", urllib.request.urlopen(
            f"http://{admin}/metrics").read().decode()).group(1))
        load(process.pid, port, 1)
        rounds = []
        for number in range(arguments.rounds):
            one = {}
            for way in WAYS[number % 3:] + WAYS[:number % 3]:
                changes = Changes(client, f"/{way}/", ports) if way != "quiet" else None
                updates = metric()
                if changes:
                    changes.start()
                one[way] = load(process.pid, port, arguments.seconds)
                if changes:
                    changes.stop()
                    one[way]["changes_per_s"] = changes.made / arguments.seconds
                one[way]["updates_per_s"] = (metric() - updates) / arguments.seconds
            rounds.append(one)
    result = {}
    for way in WAYS:
        entry = {key: round(statistics.median(one[way][key] for one in rounds), 1) for key in rounds[0][way]}
        for other in WAYS[WAYS.index(way) + 1:]:
            for key in ("requests_per_s", "p50_us", "p99_us", "cpu_us"):
                ratios = [one[way][key] / one[other][key] for one in rounds]
                entry[f"{key}_over_{other}"] = [round(it, 3) for it in (statistics.median(ratios), min(ratios), max(ratios))]
        result[way] = entry
    print(json.dumps(result, indent=1))
    if arguments.out:
        os.makedirs(arguments.out, exist_ok=True)
        text = {"command": f"bench/discovery.py --sluice target/release/sluice --rounds {arguments.rounds} "
                           f"--seconds {arguments.seconds}", "result": result, "rounds": rounds}
        with open(os.path.join(arguments.out, "discovery.json"), "w") as file:
            file.write(json.dumps(text, indent=1) + "\n")


main()
