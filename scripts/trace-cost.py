#!/usr/bin/env python3
"""The cost of watching: requests per second of a real Puma with and without a script attached.

    scripts/trace-cost.py [--script scripts/puma_stages.bt] [--one-in N] [--connections 32] [--rounds 20]
                          [--loads 3] [--seconds 1] [--out FOLDER]

As root. Each round measures with the script attached and without, with wrk on one Puma of four threads; the order
is swapped from round to round, and each side is the median of --loads runs. The result is the median of the
rounds' ratios, because the absolute figures depend on what else the machine does. Prints a table of two lines, and
writes it and every run to FOLDER (table.md, raw.json).
"""
import argparse, json, os, platform, re, signal, socket, statistics, subprocess, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WAIT_S = 30


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_for(what, done):
    end = time.monotonic() + WAIT_S
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"error: {what} within {WAIT_S} s")
        time.sleep(0.05)


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except ConnectionRefusedError:
        return False


def loads(port, options):
    return [load(port, options) for _ in range(options.loads)]


def load(port, options):
    command = ["wrk", "-t1", f"-c{options.connections}", f"-d{options.seconds}s", f"http://127.0.0.1:{port}/"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in text or "Socket errors" in text:
        raise SystemExit(f"error: {text}")
    return float(re.search(r"Requests/sec: *([\d.]+)", text)[1])


def watched(port, options):
    """The loads, with the script attached for all of them."""
    words = ["bpftrace", options.script, str(port), str(options.loads * options.seconds + 60), str(options.one_in)]
    with tempfile.TemporaryFile("w+") as log:
        script = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)

        def text():
            return os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")

        try:
            wait_for("the script attaches", lambda: "attached: " in text() or script.poll() is not None)
            if script.poll() is not None:
                raise SystemExit(f"error: the script ended\n{text()}")
            return loads(port, options)
        finally:
            script.send_signal(signal.SIGINT)
            script.wait(WAIT_S)


def measure(port, options):
    rounds = []
    load(port, options)
    for number in range(options.rounds):
        pair = {}
        for on in [True, False] if number % 2 else [False, True]:
            figures = watched(port, options) if on else loads(port, options)
            side = "on" if on else "off"
            pair[side], pair[f"{side}_loads"] = statistics.median(figures), figures
        pair["ratio"] = pair["on"] / pair["off"]
        pair["load_1_min"] = os.getloadavg()[0]
        rounds.append(pair)
        print(f"round {number + 1}: {pair['off']:.0f} off, {pair['on']:.0f} on, {pair['ratio']:.3f}", flush=True)
    return rounds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--script", default=os.path.join(ROOT, "scripts/puma_stages.bt"))
    parser.add_argument("--one-in", type=int, default=0, help="0 is the script's own default")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--loads", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--out")
    options = parser.parse_args()
    port = free_port()
    rackup = os.path.join(ROOT, "bench/origins/puma/config.ru")
    words = ["puma", "-C", "-", "-e", "production", "-t", "4:4", "-b", f"tcp://127.0.0.1:{port}", rackup]
    puma = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        wait_for("Puma listens", lambda: answers(port))
        rounds = measure(port, options)
    finally:
        puma.terminate()
        puma.wait()
    off, on = (statistics.median(pair[key] for pair in rounds) for key in ("off", "on"))
    ratio = statistics.median(pair["ratio"] for pair in rounds)
    table = (f"| {os.path.basename(options.script)} | req/s, median of {len(rounds)} rounds | median of ratios |\n"
             f"|---|---|---|\n| off | {off:.0f} | 1 |\n| on | {on:.0f} | {ratio:.3f} |\n")
    print(f"\n{table}", end="")
    if options.out:
        facts = {"kernel": platform.release(), "cpus": os.cpu_count(), "connections": options.connections,
                 "seconds": options.seconds, "one_in": options.one_in, "median_ratio": ratio, "rounds": rounds}
        os.makedirs(options.out, exist_ok=True)
        with open(os.path.join(options.out, "raw.json"), "w") as file:
            json.dump(facts, file, indent=1)
        with open(os.path.join(options.out, "table.md"), "w") as file:
            file.write(table)


main()
