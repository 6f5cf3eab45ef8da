#!/usr/bin/env python3
"""The CPU that a request takes in two builds of sluice, interleaved: what a change costs those who do not use it.

    bench/builds.py --before OLD --after NEW [--rounds 40] [--seconds 2] [--out DIR]

Both run all the time, with one worker and one route to the same application (nginx with a file of 1 KB, one process). A
round loads each of them with wrk over 50 connections, in an order that alternates, and divides the time that the process
has spent (user and system) by the requests. CPU time of a process is less noisy than requests a second on a shared
machine. The result is the median of the ratios of each round, with the range of the middle 80 percent. Needs wrk and nginx.
"""
import argparse, contextlib, json, os, re, statistics, subprocess, sys, tempfile, time

from running import end_on_signal, sluice, started_nginx


def spent(pid):
    """Seconds of CPU of a process, from the scheduler's own count in nanoseconds."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        total += int(open(f"/proc/{pid}/task/{task}/schedstat").read().split()[0])
    return total / 1e9


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
    end_on_signal()
    with contextlib.ExitStack() as started:
        folder = started.enter_context(tempfile.TemporaryDirectory())
        os.chmod(folder, 0o755)
        started.enter_context(started_nginx(folder))
        while not os.path.exists(folder + "/app.sock"):
            time.sleep(0.05)
        config = {"clusters": {"app": {"endpoints": [f"unix:{folder}/app.sock"]}}, "routes": [{"cluster": "app"}]}
        binaries = {"before": arguments.before, "after": arguments.after}
        both = {name: started.enter_context(sluice(binary, config, folder, name)) for name, binary in binaries.items()}
        for process, port in both.values():
            load(process, port, 1)
        rounds = []
        for number in range(arguments.rounds):
            order = ["before", "after"] if number % 2 else ["after", "before"]
            rounds.append({name: round(load(*both[name], arguments.seconds), 3) for name in order})
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
