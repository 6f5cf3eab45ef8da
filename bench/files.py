#!/usr/bin/env python3
"""Files of a route beside nginx with sendfile and open_file_cache, and Caddy if it is installed, interleaved.

    bench/files.py --sluice BINARY [--rounds 15] [--seconds 2] [--workers 1] [--tls] [--out DIR]

Every server serves the same files of 1 KB, 64 KB and 1 MB all the time, with as many workers. A round loads each of them
in turn with wrk over 50 connections, for each size, in an order that rotates. The result is the median of the ratios of
each round, with the smallest and the largest, for requests a second, p99, and the CPU of the server a request. The body
of one response of each is compared with the file first. Needs wrk and nginx.
"""
import argparse, contextlib, hashlib, json, os, shutil, subprocess, tempfile

from measuring import free_port, load, summary, wait_for
from running import end_on_signal, program, sluice, started_caddy

SIZES = {"1kb": 1 << 10, "64kb": 64 << 10, "1mb": 1 << 20}


def nginx(folder, port, workers, tls):
    secure = f"ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem; ssl_session_cache shared:a:1m;"
    config = f"""user root; daemon off; worker_processes {workers}; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 10000; }} http {{ access_log off; keepalive_requests 1000000000; sendfile on; tcp_nopush on;
tcp_nodelay on; open_file_cache max=10000; open_file_cache_valid 1s; server {{ listen 127.0.0.1:{port} reuseport
{"ssl" if tls else ""} backlog=4096; {secure if tls else ""} root {folder}/www; }} client_body_temp_path {folder}/a;
proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e; }}"""
    with open(folder + "/nginx.conf", "w") as file:
        file.write(config)
    return program(["nginx", "-p", folder, "-c", folder + "/nginx.conf", "-e", folder + "/error.log"])


def caddy(folder, port, workers, tls):
    secure = f"tls {folder}/cert.pem {folder}/key.pem" if tls else ""
    address = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    return started_caddy(folder, workers, f"{address} {{\nroot * {folder}/www\nfile_server\n{secure}\n}}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    end_on_signal()
    scheme = "https" if arguments.tls else "http"
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
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                        "/CN=127.0.0.1", "-keyout", folder + "/key.pem", "-out", folder + "/cert.pem", "-days", "2"],
                       check=True, capture_output=True)
        config = {"routes": [{"files": {"root": folder + "/www"}}], "workers": arguments.workers}
        if arguments.tls:
            pair = {"cert": folder + "/cert.pem", "key": folder + "/key.pem"}
            listener = {"name": "main", "address": "127.0.0.1:0", "tls": {"certificates": [pair]}, "http2": "off"}
            config["listeners"] = [listener]
        process, port = started.enter_context(sluice(arguments.sluice, config, folder, "sluice"))
        servers = {"sluice": (process.pid, port)}
        for name, start in {"nginx": nginx, "caddy": caddy}.items():
            if shutil.which(name):
                port = free_port()
                peer = started.enter_context(start(folder, port, arguments.workers, arguments.tls))
                servers[name] = (peer.pid, port)
            else:
                print(f"{name} is not installed; skipped")
        for _, port in servers.values():
            for name, digest in digests.items():
                wait_for(f"{scheme}://127.0.0.1:{port}/{name}.bin", digest)
        rounds = []
        names = list(servers)
        for number in range(arguments.rounds):
            order = names[number % len(names):] + names[:number % len(names)]
            measure = lambda name, size: load(servers[name][0], f"{scheme}://127.0.0.1:{servers[name][1]}/{size}.bin",
                                              arguments.seconds)
            rounds.append({size: {name: measure(name, size) for name in order} for size in SIZES})
        result = summary(rounds, names)
    print(json.dumps(result, indent=1))
    if arguments.out:
        os.makedirs(arguments.out, exist_ok=True)
        flags = f"--workers {arguments.workers}" + (" --tls" if arguments.tls else "")
        text = {"command": f"bench/files.py --sluice target/release/sluice {flags}", "result": result, "rounds": rounds}
        name = f"files-{scheme}-{arguments.workers}.json"
        with open(os.path.join(arguments.out, name), "w") as file:
            file.write(json.dumps(text, indent=1) + "\n")


main()
