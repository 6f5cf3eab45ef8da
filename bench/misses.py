#!/usr/bin/env python3
"""Where the processor's time for a request goes as connections grow: instructions and cache misses by part of sluice.

    bench/misses.py --sluice target/release/sluice [--out DIR]

sluice runs with one worker and without kernel assists in callgrind, which counts instructions and simulates a cache of
48 KiB and one of 1 MiB behind it, those of a current server processor. So the numbers depend neither on what else the
machine does nor on access to its counters. They cover sluice's own code and its libraries, not the kernel. Every
connection always has a request under way: callgrind slows sluice by some fifty times, and the application, nginx with
a file of 1 KB, waits for it. Before each count, each connection has sent requests already. Needs valgrind, wrk, h2load,
nginx and openssl.
"""
import argparse, collections, contextlib, json, os, re, subprocess, sys, tempfile, time

from running import end_on_signal, program

# The connections, and the streams of each over HTTP/2 and TLS.
CASES = [(50, 0), (200, 0), (500, 0), (1000, 0), (2000, 0), (10, 1), (10, 10), (10, 50)]
CACHES = ["--I1=32768,8,64", "--D1=49152,12,64", "--LL=1048576,16,64"]
# The first that a function's name contains tells which part it belongs to.
PARTS = [
    ("copies", "memcpy|memmove|memset|memcmp"), ("allocator", "malloc|^free$|^_int_|realloc|calloc|memalign|unlink_chunk"),
    ("HTTP/2 library", r"\bh2::|\bhttp::|\bbytes::|slab::|indexmap"), ("TLS", "rustls|aws_lc|aesni|ghash|gcm"),
    ("tasks and timers", "tokio"), ("ring, sockets, buffers", "sluice_ring|sluice_net"),
    ("messages", "sluice_http|httparse|memchr"), ("exchanges", "sluice_engine"), ("everything else", ""),
]


def parts_of(path):
    """Instructions and misses of each part, from callgrind's file."""
    names, total, function, is_call, events = {}, collections.defaultdict(collections.Counter), None, False, []
    for line in open(path):
        if line.startswith("events:"):
            events = line.split()[1:]
        elif found := re.match(r"fn=\((\d+)\) ?(.*)", line):
            function = names.setdefault(found[1], found[2])
        elif found := re.match(r"cfn=\((\d+)\) ?(.*)", line):
            names.setdefault(found[1], found[2])
        elif line.startswith("calls="):
            is_call = True
        elif line[:1].isdigit() or line[:1] in "+-*":
            if not is_call:
                part = next(name for name, pattern in PARTS if re.search(pattern, function))
                total[part].update(dict(zip(events, map(int, line.split()[1:]))))
            is_call = False
    return {part: {"instructions": counts["Ir"], "first": counts["D1mr"] + counts["D1mw"],
                   "second": counts["DLmr"] + counts["DLmw"]} for part, counts in total.items()}


def application(folder):
    os.makedirs(folder + "/www")
    with open(folder + "/www/1k", "w") as file:
        file.write("x" * 1024)
    with open(folder + "/nginx.conf", "w") as file:
        file.write(f"""daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 8192; }} http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 600s;
server {{ listen unix:{folder}/app.sock backlog=4096; root {folder}/www; }} client_body_temp_path {folder}/a;
proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e; }}""")
    return program(["nginx", "-p", folder, "-c", folder + "/nginx.conf", "-e", folder + "/error.log"])


def configuration(folder):
    certificate = {"cert": folder + "/cert.pem", "key": folder + "/key.pem"}
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-out",
                    certificate["cert"], "-keyout", certificate["key"]], check=True, capture_output=True)
    config = {
        "listeners": [{"name": "plain", "address": "127.0.0.1:0"},
                      {"name": "tls", "address": "127.0.0.1:0", "tls": {"certificates": [certificate]}}],
        "clusters": {"default": {"endpoints": [f"unix:{folder}/app.sock"]}},
        "kernel": {"bypass": "off"}, "workers": 1, "access_log": "off", "admin": "off",
        "control": f"unix:{folder}/sluice.sock",
    }
    with open(folder + "/sluice.json", "w") as file:
        json.dump(config, file)


@contextlib.contextmanager
def counted(binary, folder):
    """sluice in callgrind: its process and the URLs of its listeners."""
    command = ["valgrind", "--tool=callgrind", "--cache-sim=yes", *CACHES, f"--callgrind-out-file={folder}/counts",
               binary, "run", "--config", folder + "/sluice.json"]
    with program(command, stderr=subprocess.PIPE, text=True) as process:
        ports = []
        for line in process.stderr:
            if '"message":"listening"' in line:
                ports.append(int(json.loads(line)["address"].rsplit(":", 1)[1]))
            if len(ports) == 2:
                yield process, f"http://127.0.0.1:{ports[0]}/1k", f"https://127.0.0.1:{ports[1]}/1k"
                return
        sys.exit(f"{binary} does not start in callgrind")


def load(urls, connections, streams, seconds):
    """The number of requests that were answered."""
    if streams:
        command = ["h2load", "-t1", f"-c{connections}", f"-m{streams}", f"-n{seconds * 1000}", urls[1]]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return int(re.search(r"(\d+) succeeded, 0 failed", said)[1])
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", urls[0]]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in said:
        sys.exit(said)
    return int(re.search(r"(\d+) requests in", said)[1])


def measured(binary, folder, connections, streams):
    with counted(binary, folder) as (process, *urls):
        load(urls, connections, streams, 5)
        subprocess.run(["callgrind_control", "-z", str(process.pid)], check=True, capture_output=True)
        requests = load(urls, connections, streams, 15)
    parts = parts_of(folder + "/counts")
    return {"connections": connections, "streams": streams, "requests": requests,
            "parts": {part: {key: round(value / requests, 1) for key, value in counts.items()}
                      for part, counts in parts.items()}}


def table(cases):
    def row(name, values):
        return f"| {name} | " + " | ".join(f"{value:,.0f}".replace(",", " ") for value in values) + " |"
    heads = [f"{one['connections']}" + (f" x {one['streams']}" if one["streams"] else "") for one in cases]
    lines = []
    for key, title in (("instructions", "instructions"), ("first", "misses of the cache of 48 KiB"),
                       ("second", "misses of the cache of 1 MiB")):
        lines += [f"| {title} of a request | " + " | ".join(heads) + " |", "|---" + "|---:" * len(cases) + "|"]
        lines.append(row("all", [sum(part[key] for part in one["parts"].values()) for one in cases]))
        for name, _ in PARTS:
            values = [one["parts"].get(name, {}).get(key, 0) for one in cases]
            if max(values) >= 0.5:
                lines.append(row(name, values))
        lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    end_on_signal()
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        configuration(folder)
        with application(folder):
            time.sleep(0.5)
            for connections, streams in CASES:
                cases.append(measured(arguments.sluice, folder, connections, streams))
                print(f"{connections} connections, {streams} streams: {cases[-1]['requests']} requests", file=sys.stderr)
    text = "# misses\n\n`bench/misses.py`\n\nConnections, or connections x streams over HTTP/2 and TLS.\n\n" + table(cases)
    print(text)
    if arguments.out:
        os.makedirs(arguments.out, exist_ok=True)
        with open(os.path.join(arguments.out, "table.md"), "w") as file:
            file.write(text.rstrip() + "\n")


if __name__ == "__main__":
    main()
