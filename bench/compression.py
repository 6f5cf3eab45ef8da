#!/usr/bin/env python3
"""Encoded responses of a proxy beside nginx (gzip) and Caddy (encode), if it is installed, interleaved.

    bench/compression.py --sluice BINARY [--rounds 9] [--seconds 2] [--workers 1] [--out DIR]

An application (nginx) sends a page of 64 KB of HTML with a Content-Length. Each proxy encodes it, all of them run all the
time, with as many workers. Cases: gzip of `level: fast` beside nginx at level 1, gzip of `balanced` beside nginx and Caddy at level 6, whose
bodies are as small, and zstd and br of sluice alone. A round loads each server of a case in turn with wrk over 50 connections. The result
has the medians of the ratios of each round, with the smallest and the largest, and the size of each body. Needs wrk, nginx.
"""
import argparse, contextlib, json, os, shutil, sys, tempfile, time

from measuring import fetched, free_port, load, summary
from pages import page
from running import end_on_signal, program, sluice, started_caddy


def nginx(folder, name, port, workers, body):
    config = f"""user root; daemon off; worker_processes {workers}; pid {folder}/{name}.pid; error_log {folder}/error.log;
events {{ worker_connections 10000; }} http {{ access_log off; keepalive_requests 1000000000;
types {{ text/html html; }} default_type text/html; upstream app {{ server unix:{folder}/app.sock; keepalive 100; }}
server {{ listen {port} reuseport backlog=4096; {body} }} client_body_temp_path {folder}/{name}a;
proxy_temp_path {folder}/{name}b; fastcgi_temp_path {folder}/{name}c; uwsgi_temp_path {folder}/{name}d;
scgi_temp_path {folder}/{name}e; }}"""
    path = f"{folder}/{name}.conf"
    with open(path, "w") as file:
        file.write(config.replace("reuseport", "") if "unix:" in str(port) else config)
    return program(["nginx", "-p", folder, "-c", path, "-e", folder + "/error.log"])


def caddy(folder, port, workers):
    site = f"http://127.0.0.1:{port} {{\nencode {{\ngzip 6\n}}\nreverse_proxy unix/{folder}/app.sock\n}}\n"
    return started_caddy(folder, workers, site)


def size_of(url, coding):
    for _ in range(100):
        with contextlib.suppress(OSError):
            _, length, encoding = fetched(url, {"Accept-Encoding": coding})
            if encoding != coding:
                sys.exit(f"{url}: {encoding} in place of {coding}")
            return length
        time.sleep(0.1)
    sys.exit(f"{url} does not answer")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    end_on_signal()
    with contextlib.ExitStack() as started:
        folder = started.enter_context(tempfile.TemporaryDirectory())
        os.chmod(folder, 0o755)
        os.makedirs(folder + "/www")
        with open(folder + "/www/page.html", "w") as file:
            file.write(page(64 << 10))
        started.enter_context(nginx(folder, "app", f"unix:{folder}/app.sock", 1, f"root {folder}/www;"))
        while not os.path.exists(folder + "/app.sock"):
            time.sleep(0.05)

        def our(name, level):
            route = {"cluster": "app", "compress": {"level": level}}
            config = {"clusters": {"app": {"endpoints": [f"unix:{folder}/app.sock"]}}, "routes": [route],
                      "workers": arguments.workers, "compression": {"cpu_percent_max": 100}}
            process, port = started.enter_context(sluice(arguments.sluice, config, folder, name))
            return process.pid, port

        def their(name, level):
            port = free_port()
            proxy = f"""gzip on; gzip_comp_level {level}; gzip_min_length 1k; gzip_http_version 1.1; location / {{
proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; }}"""
            process = started.enter_context(nginx(folder, name, f"127.0.0.1:{port}", arguments.workers, proxy))
            return process.pid, port

        fast, balanced = our("fast", "fast"), our("balanced", "balanced")
        cases = {
            "gzip-fast": ("gzip", {"sluice": fast, "nginx": their("nginx1", 1)}),
            "gzip-balanced": ("gzip", {"sluice": balanced, "nginx": their("nginx6", 6)}),
            "zstd-balanced": ("zstd", {"sluice": balanced}),
            "br-balanced": ("br", {"sluice": balanced}),
        }
        if shutil.which("caddy"):
            port = free_port()
            cases["gzip-balanced"][1]["caddy"] = (started.enter_context(caddy(folder, port, arguments.workers)).pid, port)
        else:
            print("caddy is not installed; skipped")
        url = lambda port: f"http://127.0.0.1:{port}/page.html"
        sizes = {case: {name: size_of(url(port), coding) for name, (_, port) in servers.items()}
                 for case, (coding, servers) in cases.items()}
        rounds = []
        for number in range(arguments.rounds):
            one = {}
            for case, (coding, servers) in cases.items():
                names = list(servers)
                order = names[number % len(names):] + names[:number % len(names)]
                fields = [f"Accept-Encoding: {coding}"]
                one[case] = {name: load(servers[name][0], url(servers[name][1]), arguments.seconds, fields) for name in order}
            rounds.append(one)
    result = {case: {"body_bytes": sizes[case], **summary([{case: one[case]} for one in rounds], list(servers))[case]}
              for case, (_, servers) in cases.items()}
    print(json.dumps(result, indent=1))
    if arguments.out:
        os.makedirs(arguments.out, exist_ok=True)
        command = f"bench/compression.py --sluice target/release/sluice --workers {arguments.workers}"
        with open(os.path.join(arguments.out, "compression.json"), "w") as file:
            file.write(json.dumps({"command": command, "result": result, "rounds": rounds}, indent=1) + "\n")


main()
