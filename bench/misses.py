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
import argparse, collections, os, re, subprocess, sys, tempfile, time

from running import end_on_signal, sluice, started_nginx

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


def make_certificate(folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-out",
                    folder + "/cert.pem", "-keyout", folder + "/key.pem"], check=True, capture_output=True)


def load(port, connections, streams, seconds):
    """The number of requests that were answered."""
    if streams:
        command = ["h2load", "-t1", f"-c{connections}", f"-m{streams}", f"-n{seconds * 1000}"]
        url, answered = f"https://127.0.0.1:{port}/1k", r"(\d+) succeeded, 0 failed"
    else:
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s"]
        url, answered = f"http://127.0.0.1:{port}/1k", r"(\d+) requests in"
    said = subprocess.run([*command, url], check=True, capture_output=True, text=True).stdout
    found = re.search(answered, said)
    if "Non-2xx" in said or not found:
        sys.exit(said)
    return int(found[1])


def measured(binary, folder, connections, streams):
    listener = {"name": "main", "address": "127.0.0.1:0"}
    if streams:
        listener["tls"] = {"certificates": [{"cert": folder + "/cert.pem", "key": folder + "/key.pem"}]}
    config = {"listeners": [listener], "clusters": {"default": {"endpoints": [f"unix:{folder}/app.sock"]}},
              "kernel": {"bypass": "off"}}
    under = ["valgrind", "--tool=callgrind", "--cache-sim=yes", *CACHES, f"--callgrind-out-file={folder}/counts"]
    with sluice(binary, config, folder, "sluice", under) as (process, port):
        load(port, connections, streams, 5)
        subprocess.run(["callgrind_control", "-z", str(process.pid)], check=True, capture_output=True)
        requests = load(port, connections, streams, 15)
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
        make_certificate(folder)
        with started_nginx(folder):
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
