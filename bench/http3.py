#!/usr/bin/env python3
"""HTTP/3 in front of one origin beside nginx and Caddy, and beside HTTP/2 of the same sluice, interleaved.

    bench/http3.py --sluice BINARY [--nginx BINARY] [--caddy BINARY] [--rounds 11] [--seconds 2] [--out DIR]

nginx serves files of 1 KB, 64 KB and 1 MB as the origin. Each proxy has one worker. A round loads each of them in turn, for
each size, in an order that rotates: HTTP/3 by target/release/http3-load (`cargo build --release -p sluice-bench`), 5 streams
on each of 10 connections, one thread; HTTP/2 by h2load with the same numbers. The result is the median of the ratios of each
round, with the smallest and the largest, for requests a second, p99, and the CPU of the proxy a request. nginx must be built
with the HTTP/3 module; the distributions' is not.
"""
import argparse, contextlib, hashlib, json, os, re, shutil, subprocess, tempfile

from measuring import free_port, spent, summary, wait_for
from running import end_on_signal, program, sluice

SIZES = {"1kb": 1 << 10, "64kb": 64 << 10, "1mb": 1 << 20}
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
LOADER = os.path.join(os.path.dirname(__file__), "../target/release/http3-load")


def directories(folder):
    return " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))


def origin(folder, port):
    config = f"""user root; daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 10000; }} http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 600s;
sendfile on; tcp_nopush on; {directories(folder)} server {{ listen 127.0.0.1:{port} backlog=4096; root {folder}/www; }} }}"""
    path = folder + "/origin.conf"
    with open(path, "w") as file:
        file.write(config)
    return program(["nginx", "-p", folder, "-c", path, "-e", folder + "/error.log"])


def nginx(binary, folder, port, to):
    config = f"""user root; daemon off; worker_processes 1; pid {folder}/pid3; error_log {folder}/error3.log;
events {{ worker_connections 10000; }} http {{ access_log off; keepalive_requests 1000000000; {directories(folder)}
upstream app {{ server 127.0.0.1:{to}; keepalive 128; keepalive_requests 1000000000; }}
server {{ listen 127.0.0.1:{port} quic reuseport; listen 127.0.0.1:{port} ssl; quic_gso on; ssl_protocols TLSv1.3;
ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem; location / {{ proxy_pass http://app;
proxy_http_version 1.1; proxy_set_header Connection ""; }} }} }}"""
    path = folder + "/nginx3.conf"
    with open(path, "w") as file:
        file.write(config)
    return program([binary, "-p", folder, "-c", path, "-e", folder + "/error3.log"])


def caddy(binary, folder, port, to):
    path = folder + "/Caddyfile"
    with open(path, "w") as file:
        file.write("{\nadmin off\nauto_https off\ndefault_sni localhost\n}\n" + f":{port} {{\n"
                   f"tls {folder}/cert.pem {folder}/key.pem\nreverse_proxy 127.0.0.1:{to}\n}}\n")
    environment = {**os.environ, "GOMAXPROCS": "1", "XDG_DATA_HOME": folder, "XDG_CONFIG_HOME": folder}
    return program([binary, "run", "--config", path], env=environment, **SILENT)


def load3(pid, port, path, seconds):
    before = spent(pid)
    said = subprocess.run([LOADER, f"127.0.0.1:{port}", path, "--seconds", str(seconds)], check=True, capture_output=True,
                          text=True).stdout
    said = json.loads(said)
    return {"requests_per_s": said["requests_per_s"], "p99_us": said["p99_us"],
            "cpu_us": (spent(pid) - before) / said["requests"] * 1e6}


def load2(pid, port, path, seconds):
    before = spent(pid)
    command = ["h2load", "-D", str(seconds), "-c", "10", "-m", "5", "-t", "1", f"https://127.0.0.1:{port}{path}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    requests = int(re.search(r"(\d+) succeeded", said).group(1))
    number, unit = re.search(r"time for request:\s+\S+\s+([\d.]+)(us|ms|s)", said).groups()
    # h2load has no p99; its longest time is no figure to compare.
    return {"requests_per_s": requests / seconds, "p99_us": float(number) * {"us": 1, "ms": 1e3, "s": 1e6}[unit],
            "cpu_us": (spent(pid) - before) / requests * 1e6}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--nginx")
    parser.add_argument("--caddy", default=shutil.which("caddy"))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    end_on_signal()
    with contextlib.ExitStack() as started:
        folder = started.enter_context(tempfile.TemporaryDirectory())
        os.chmod(folder, 0o755)
        os.makedirs(folder + "/www")
        for name, size in SIZES.items():
            with open(f"{folder}/www/{name}", "wb") as file:
                file.write(os.urandom(size))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                        "/CN=localhost", "-keyout", folder + "/key.pem", "-out", folder + "/cert.pem", "-days", "2"],
                       check=True, capture_output=True)
        to = free_port()
        started.enter_context(origin(folder, to))
        digests = {}
        for name in SIZES:
            digests[name] = hashlib.sha256(open(f"{folder}/www/{name}", "rb").read()).hexdigest()
            wait_for(f"http://127.0.0.1:{to}/{name}", digests[name])
        pair = {"cert": folder + "/cert.pem", "key": folder + "/key.pem"}
        listener = {"name": "main", "address": "127.0.0.1:0", "tls": {"certificates": [pair]}, "http3": "auto"}
        config = {"listeners": [listener], "clusters": {"app": {"endpoints": [f"127.0.0.1:{to}"]}}}
        process, port = started.enter_context(sluice(arguments.sluice, config, folder, "sluice"))
        servers = {"sluice": (process.pid, port, load3), "sluice over HTTP/2": (process.pid, port, load2)}
        versions = {}
        for name, binary, start, ask in (("nginx", arguments.nginx, nginx, "-v"), ("caddy", arguments.caddy, caddy, "version")):
            if not binary:
                print(f"{name} is not given; skipped")
                continue
            said = subprocess.run([binary, ask], capture_output=True, text=True)
            versions[name] = (said.stdout + said.stderr).split("\n")[0]
            port = free_port()
            peer = started.enter_context(start(binary, folder, port, to))
            servers[name] = (peer.pid, port, load3)
        for _, port, _ in servers.values():
            for name, digest in digests.items():
                wait_for(f"https://127.0.0.1:{port}/{name}", digest)
        rounds, names = [], list(servers)
        for number in range(arguments.rounds):
            order = names[number % len(names):] + names[:number % len(names)]
            measure = lambda name, size: servers[name][2](servers[name][0], servers[name][1], "/" + size, arguments.seconds)
            rounds.append({size: {name: measure(name, size) for name in order} for size in SIZES})
        result = summary(rounds, names)
    print(json.dumps(result, indent=1))
    if arguments.out:
        os.makedirs(arguments.out, exist_ok=True)
        text = {"command": "bench/http3.py --sluice target/release/sluice --nginx NGINX --caddy CADDY "
                           f"--rounds {arguments.rounds} --seconds {arguments.seconds}",
                "versions": versions, "result": result, "rounds": rounds}
        with open(os.path.join(arguments.out, "http3.json"), "w") as file:
            file.write(json.dumps(text, indent=1) + "\n")


main()
