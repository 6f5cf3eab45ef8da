#!/usr/bin/env python3
"""A page and assets as of a Rails application behind Puma, by sluice and by Thruster, interleaved.

    bench/thruster.py --sluice BINARY --thruster BINARY [--rounds 9] [--seconds 2] [--workers 1] [--out DIR]

One Puma of four threads has a page of 16 KB that is made anew each time, a script of 120 KB, a style sheet of 60 KB and a
picture of 8 KB, the last three with fingerprints in their names and `max-age` of a year, none of them encoded. Both proxies have
a cache and encode, run all the time, and have as many workers (GOMAXPROCS). Clients take gzip, the only coding of Thruster.
A round loads each of them in turn with wrk over 50 connections, for each path. The result has the medians of the ratios of
each round, with the smallest and the largest, and the size of each body. Needs wrk, puma.
"""
import argparse, contextlib, json, os, subprocess, tempfile, time

from measuring import fetched, free_port, load, summary
from pages import page
from running import end_on_signal, program, sluice

APPLICATION = """# frozen_string_literal: true
PAGE = File.binread("page.html")
run lambda { |env|
  path = env["PATH_INFO"]
  if path == "/"
    body = PAGE.dup
    next [200, { "content-type" => "text/html; charset=utf-8", "cache-control" => "max-age=0, private, must-revalidate",
                 "content-length" => body.bytesize.to_s }, [body]]
  end
  type = { ".js" => "text/javascript", ".css" => "text/css", ".png" => "image/png" }.fetch(File.extname(path))
  body = File.binread(File.join("assets", File.basename(path)))
  [200, { "content-type" => type, "cache-control" => "public, max-age=31536000, immutable",
          "content-length" => body.bytesize.to_s }, [body]]
}
"""
PATHS = {"page": "/", "script": "/assets/application-4f5e.js", "style": "/assets/application-9c0d.css",
         "picture": "/assets/logo-77aa.png"}
FIELDS = {"Accept-Encoding": "gzip"}


def write_site(folder):
    os.makedirs(folder + "/assets")
    files = {"page.html": page(16 << 10).encode(), "config.ru": APPLICATION.encode(),
             "assets/application-4f5e.js": page(120 << 10).encode(), "assets/application-9c0d.css": page(60 << 10).encode(),
             "assets/logo-77aa.png": os.urandom(8 << 10)}
    for name, content in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)


def thruster(binary, folder, port, app, workers):
    """In front of an application that runs already: what it starts itself does nothing."""
    settings = {"HTTP_PORT": port, "TARGET_PORT": app, "LOG_REQUESTS": "false", "STORAGE_PATH": folder + "/thruster"}
    environment = {**os.environ, **{"THRUSTER_" + name: str(value) for name, value in settings.items()},
                   "GOMAXPROCS": str(workers)}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return program([binary, "sleep", "1000000"], env=environment, **silent)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--thruster", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    end_on_signal()
    with contextlib.ExitStack() as started:
        folder = started.enter_context(tempfile.TemporaryDirectory())
        write_site(folder)
        app, port = free_port(), free_port()
        puma = ["puma", "-C", "-", "-e", "production", "-t", "4:4", "-b", f"tcp://127.0.0.1:{app}", "config.ru"]
        started.enter_context(program(puma, cwd=folder, stdout=subprocess.DEVNULL))
        config = {"workers": arguments.workers, "caches": {"default": {}},
                  "clusters": {"app": {"endpoints": [f"127.0.0.1:{app}"], "max_in_flight": 4}},
                  "routes": [{"cluster": "app", "cache": "default", "compress": {}}]}
        process, own = started.enter_context(sluice(arguments.sluice, config, folder, "sluice"))
        peer = started.enter_context(thruster(arguments.thruster, folder, port, app, arguments.workers))
        servers = {"sluice": (process.pid, own), "thruster": (peer.pid, port)}
        url = lambda name, path: f"http://127.0.0.1:{servers[name][1]}{path}"
        sizes = {case: {name: size_of(url(name, path)) for name in servers} for case, path in PATHS.items()}
        rounds, names = [], list(servers)
        fields = [f"{name}: {value}" for name, value in FIELDS.items()]
        for number in range(arguments.rounds):
            order = names[number % 2:] + names[:number % 2]
            measure = lambda name, path: load(servers[name][0], url(name, path), arguments.seconds, fields)
            rounds.append({case: {name: measure(name, path) for name in order} for case, path in PATHS.items()})
        result = {case: {"body_bytes": sizes[case], **one} for case, one in summary(rounds, names).items()}
    print(json.dumps(result, indent=1))
    if arguments.out:
        os.makedirs(arguments.out, exist_ok=True)
        command = f"bench/thruster.py --sluice target/release/sluice --thruster thrust --workers {arguments.workers}"
        with open(os.path.join(arguments.out, "thruster.json"), "w") as file:
            file.write(json.dumps({"command": command, "result": result, "rounds": rounds}, indent=1) + "\n")


def size_of(url):
    """Bytes of a body, once the server responds; the second time it may come from a cache."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            fetched(url, FIELDS)
            return fetched(url, FIELDS)[1]
        time.sleep(0.1)
    raise SystemExit(f"{url} does not answer")


main()
