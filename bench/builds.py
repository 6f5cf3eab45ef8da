#!/usr/bin/env python3
"""The CPU that a request takes in two builds of sluice, interleaved: what a change costs those who do not use it.

    bench/builds.py --before OLD --after NEW [--rounds 40] [--seconds 2] [--out DIR]

Both run all the time, with one worker and one route to the same application (nginx with a file of 1 KB, one process). A
round loads each of them with wrk over 50 connections, in an order that alternates, and divides the time that the process
has spent (user and system) by the requests. CPU time of a process is less noisy than requests a second on a shared
machine. The result is the median of the ratios of each round, with the range of the middle 80 percent. Needs wrk and nginx.
"""
import argparse, json, os, re, statistics, subprocess, sys, tempfile, time


def spent(pid):
    """Seconds of CPU of a process, from the scheduler's own count in nanoseconds."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        total += int(open(f"/proc/{pid}/task/{task}/schedstat").read().split()[0])
    return total / 1e9


def nginx(folder):
    os.makedirs(folder + "/www")
    open(folder + "/www/1k", "w").write("x" * 1024)
    config = f"""daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{}} http {{ access_log off; keepalive_requests 1000000000; server {{ listen unix:{folder}/app.sock;
root {folder}/www; }} client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e; }}"""
    open(folder + "/nginx.conf", "w").write(config)
    return subprocess.Popen(["nginx", "-p", folder, "-c", folder + "/nginx.conf", "-e", folder + "/error.log"])


def sluice(binary, folder, name):
    config = {
        "listeners": [{"name": "main", "address": "127.0.0.1:0"}],
        "clusters": {"app": {"endpoints": [f"unix:{folder}/app.sock"]}}, "routes": [{"cluster": "app"}],
        "access_log": "off", "admin": "off", "control": f"unix:{folder}/{name}.sock", "workers": 1,
    }
    path = f"{folder}/{name}.json"
    json.dump(config, open(path, "w"))
    process = subprocess.Popen([binary, "run", "--config", path], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if '"message":"listening"' in line:
            return process, int(json.loads(line)["address"].rsplit(":", 1)[1])
    sys.exit(f"{binary} does not start")


def load(process, port, seconds):
    before = spent(process.pid)
    command = ["wrk", "-t", "1", "-c", "50", "-d", f"{seconds}s", f"http://127.0.0.1:{port}/1k"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    requests = int(re.search(r"(\d+) requests in", said).group(1))
    if "Non-2xx" in said or not requests:
        sys.exit(said)
    return (spent(process.pid) - before) / requests * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True)
    parser.add_argument("--after", required=True)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        application = nginx(folder)
        time.sleep(0.5)
        both = {name: sluice(getattr(arguments, name), folder, name) for name in ("before", "after")}
        rounds = []
        try:
            for _, (process, port) in both.items():
                load(process, port, 1)
            for number in range(arguments.rounds):
                order = ["before", "after"] if number % 2 else ["after", "before"]
                rounds.append({name: round(load(*both[name], arguments.seconds), 3) for name in order})
        finally:
            for process in [process for process, _ in both.values()] + [application]:
                process.terminate()
                process.wait()
    ratios = sorted(one["after"] / one["before"] for one in rounds)
    tenth = len(ratios) // 10
    result = {
        "us_a_request": {name: statistics.median(one[name] for one in rounds) for name in ("before", "after")},
        "ratio": round(statistics.median(ratios), 4),
        "middle_80_percent": [round(ratios[tenth], 4), round(ratios[-1 - tenth], 4)],
    }
    print(json.dumps(result))
    if arguments.out:
        os.makedirs(arguments.out, exist_ok=True)
        text = {"command": "bench/builds.py --before OLD --after NEW", "result": result, "rounds": rounds}
        open(os.path.join(arguments.out, "builds.json"), "w").write(json.dumps(text, indent=1) + "\n")


main()
