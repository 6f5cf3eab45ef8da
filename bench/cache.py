#!/usr/bin/env python3
"""Responses from a cache beside nginx (proxy_cache) and Varnish, interleaved.

    bench/cache.py --sluice BINARY [--before BINARY] [--rounds 15] [--seconds 2] [--workers 1] [--out DIR]

One nginx is the application. Every server keeps its responses of 1 KB and 64 KB, with as many workers, all the time. A
round loads each of them in turn with wrk, for each size, in an order that rotates. `files` is sluice with a file of the same
content, for what a hit costs beside it; `disk` is one whose cache has a disk as well; `before` is another build of sluice, if
one is named. The result is the median of the ratios of each round, with the smallest and the
largest, for requests a second, p99, and the CPU of the server a request. The body of one response of each is compared first,
and the application must not see a request during the rounds. Needs wrk, nginx and, for Varnish, varnishd.
"""
import argparse, contextlib, hashlib, json, os, shutil, subprocess, tempfile

from measuring import free_port, load, summary, wait_for
from running import end_on_signal, program, sluice

SIZES = {"1kb": 1 << 10, "64kb": 64 << 10}
TEMP = ("client_body_temp_path {0}/{1}-a; proxy_temp_path {0}/{1}-b; fastcgi_temp_path {0}/{1}-c; uwsgi_temp_path {0}/{1}-d; "
        "scgi_temp_path {0}/{1}-e;")


def nginx(folder, name, workers, http, server):
    config = f"""user root; daemon off; worker_processes {workers}; pid {folder}/{name}.pid; error_log {folder}/{name}.log;
events {{ worker_connections 10000; }} http {{ keepalive_requests 1000000000; sendfile on; tcp_nodelay on;
access_log off; open_file_cache max=10000; open_file_cache_valid 60s; {http} server {{ {server} }}
{TEMP.format(folder, name)} }}"""
    with open(f"{folder}/{name}.conf", "w") as file:
        file.write(config)
    return program(["nginx", "-p", folder, "-c", f"{folder}/{name}.conf", "-e", f"{folder}/{name}.log"])


def origin(folder, port):
    server = f"""listen 127.0.0.1:{port} backlog=4096; root {folder}/www; access_log {folder}/asked.log;
add_header Cache-Control "public, max-age=86400"; """
    return nginx(folder, "origin", 1, "", server)


def cached_by_nginx(folder, port, workers, app):
    path = f"proxy_cache_path {folder}/kept levels=1:2 keys_zone=a:16m max_size=1g inactive=1d use_temp_path=off;"
    server = f"""listen 127.0.0.1:{port} reuseport backlog=4096;
location / {{ proxy_pass http://127.0.0.1:{app}; proxy_cache a; add_header X-Cache $upstream_cache_status; }}"""
    return nginx(folder, "nginx", workers, path, server)


def cached_by_varnish(folder, port, workers, app):
    with open(folder + "/app.vcl", "w") as file:
        file.write(f'vcl 4.1; backend app {{ .host = "127.0.0.1"; .port = "{app}"; }}\n')
    return program(["varnishd", "-F", "-n", folder + "/varnish", "-a", f"127.0.0.1:{port}", "-f", folder + "/app.vcl",
                    "-s", "malloc,256m", "-j", "none"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--before")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    end_on_signal()
    with contextlib.ExitStack() as started:
        folder = started.enter_context(tempfile.TemporaryDirectory())
        os.chmod(folder, 0o755)
        os.makedirs(folder + "/www")
        digests = {}
        for name, size in SIZES.items():
            content = os.urandom(size)
            digests[name] = hashlib.sha256(content).hexdigest()
            with open(f"{folder}/www/{name}.bin", "wb") as file:
                file.write(content)
        app = free_port()
        started.enter_context(origin(folder, app))
        common = {"workers": arguments.workers}
        cached = {**common, "caches": {"default": {}}, "clusters": {"app": {"endpoints": [f"127.0.0.1:{app}"]}},
                  "routes": [{"cluster": "app", "cache": "default"}]}
        servers = {}
        files = {**common, "routes": [{"files": {"root": folder + "/www"}}]}
        on_disk = {**cached, "caches": {"default": {"disk": {"folder": folder + "/disk"}}}}
        for name, config in {"sluice": cached, "files": files, "disk": on_disk, "before": cached}.items():
            binary = arguments.before if name == "before" else arguments.sluice
            if not binary:
                continue
            process, port = started.enter_context(sluice(binary, config, folder, name))
            servers[name] = (process.pid, port)
        for name, start, command in [("nginx", cached_by_nginx, "nginx"), ("varnish", cached_by_varnish, "varnishd")]:
            if shutil.which(command):
                port = free_port()
                peer = started.enter_context(start(folder, port, arguments.workers, app))
                servers[name] = (peer.pid, port)
            else:
                print(f"{command} is not installed; skipped")
        for _, port in servers.values():
            for name, digest in digests.items():
                for _ in range(2):
                    wait_for(f"http://127.0.0.1:{port}/{name}.bin", digest)
        asked = lambda: len(open(folder + "/asked.log").readlines())
        before, rounds, names = asked(), [], list(servers)
        for number in range(arguments.rounds):
            order = names[number % len(names):] + names[:number % len(names)]
            measure = lambda name, size: load(servers[name][0], f"http://127.0.0.1:{servers[name][1]}/{size}.bin",
                                              arguments.seconds)
            rounds.append({size: {name: measure(name, size) for name in order} for size in SIZES})
        if asked() != before:
            raise SystemExit(f"the application was asked {asked() - before} times")
        result = summary(rounds, names)
    print(json.dumps(result, indent=1))
    if arguments.out:
        os.makedirs(arguments.out, exist_ok=True)
        text = {"command": f"bench/cache.py --sluice target/release/sluice --workers {arguments.workers}", "result": result,
                "rounds": rounds}
        with open(os.path.join(arguments.out, f"cache-{arguments.workers}.json"), "w") as file:
            file.write(json.dumps(text, indent=1) + "\n")


main()
