#!/usr/bin/env python3
"""Compares tunnels of a tcp listener: copied, spliced by the kernel, and without a proxy.

    bench/splice.py --sluice target/release/sluice [--rounds 5] [--seconds 3] [--gigabytes 4] [--out DIR]

Both proxies (kernel.splice off, and required from the first byte on) run all the time, in front of the same server
(bench/splice/load.rs, built by rustc). A round measures each case on each of them in turn, in an order that rotates.
The table has medians, and medians of the ratios within a round. CPU is the time of load, server and both proxies, and
of all kernel workers, because the splice runs in them. The splice needs root.
"""
import argparse, json, os, re, resource, statistics, subprocess, tempfile

CASES = {
    "1 KB, 1 connection": (1, 1024, 1024, None),
    "1 KB, 8 connections": (8, 1024, 1024, None),
    "1 KB, 50 connections": (50, 1024, 1024, None),
    "1 MB pieces, 1 connection": (1, 1, 1 << 20, None),
    "1 MB pieces, 8 connections": (8, 1, 1 << 20, None),
    "stream": (1, 1, None, 1),
}
HERE = os.path.dirname(os.path.abspath(__file__))


def used(pids):
    """Processor time of these processes, of load processes that have ended, and of kernel workers, in seconds."""
    total = 0
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            name, _, rest = open(f"/proc/{entry}/stat").read().rpartition(")")
        except OSError:
            continue
        if int(entry) in pids or "(kworker" in name:
            fields = rest.split()
            total += int(fields[11]) + int(fields[12])
    load = resource.getrusage(resource.RUSAGE_CHILDREN)
    return total / os.sysconf("SC_CLK_TCK") + load.ru_utime + load.ru_stime


def start(sluice, origin, folder, splice):
    path = os.path.join(folder, splice + ".json")
    config = {
        "listeners": [{"name": "main", "address": "127.0.0.1:0", "protocol": "tcp", "cluster": "default"}],
        "clusters": {"default": {"endpoints": [f"127.0.0.1:{origin}"]}},
        "access_log": "off", "admin": "off",
        "kernel": {"bypass": "off", "splice": splice, "splice_after_bytes": 0},
    }
    json.dump(config, open(path, "w"))
    process = subprocess.Popen([sluice, "run", "--config", path], stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    said = ""
    for line in process.stderr:
        said += line
        found = re.search(r'"listening".*"address":"127.0.0.1:(\d+)"', line)
        if found:
            return process, int(found[1])
    raise SystemExit(f"sluice has ended: {said}")


def measure(load, port, case, seconds, gigabytes, pids):
    connections, up, down, rounds = case
    down = down or int(gigabytes * (1 << 30))
    arguments = [load, "drive", str(port), str(connections), str(up), str(down), str(seconds)]
    before = used(pids)
    out = subprocess.run(arguments + ([str(rounds)] if rounds else []), check=True, text=True,
                         stdout=subprocess.PIPE, start_new_session=True).stdout.split()
    spent = used(pids) - before
    count, elapsed, p50, p99 = int(out[0]), float(out[1]), int(out[2]), int(out[3])
    return {"rate": count / elapsed, "megabytes_s": count * (up + down) / elapsed / 1e6,
            "cpu_us": spent / count * 1e6, "p50_us": p50, "p99_us": p99}


def table(rounds, args):
    lines = ["# Tunnels copied and spliced", "",
             f"`bench/splice.py --rounds {args.rounds} --seconds {args.seconds} --gigabytes {args.gigabytes}`: medians of"
             " the rounds; the ratios", "are medians of those within a round, with the smallest and the largest. CPU is of"
             " load, server, proxies and the", "kernel's workers, for one round trip or piece. [`raw.json`](raw.json) has"
             " every sample.", "",
             "| case | direct | copied | spliced | spliced / copied | CPU, copied, us | CPU, spliced, us | ratio |",
             "|---|---:|---:|---:|---:|---:|---:|---:|"]
    for name, case in CASES.items():
        large = case[1] + (case[2] or 1 << 30) > 1 << 19
        key, unit = ("megabytes_s", "MB/s") if large else ("rate", "/s")
        median = lambda path, key: statistics.median(r[name][path][key] for r in rounds)
        ratios = lambda key: [r[name]["spliced"][key] / r[name]["copied"][key] for r in rounds]
        spread = lambda v: f"{statistics.median(v):.2f} ({min(v):.2f}-{max(v):.2f})"
        speeds = " | ".join(f"{median(path, key):.0f} {unit}" for path in ("direct", "copied", "spliced"))
        lines.append(f"| {name} | {speeds} | {spread(ratios(key))} | {median('copied', 'cpu_us'):.0f} |"
                     f" {median('spliced', 'cpu_us'):.0f} | {spread(ratios('cpu_us'))} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        load = os.path.join(folder, "load")
        subprocess.run(["rustc", "--edition", "2024", "-O", "-o", load, os.path.join(HERE, "splice", "load.rs")], check=True)
        server = subprocess.Popen([load, "serve"], stdout=subprocess.PIPE, text=True, start_new_session=True)
        origin = int(server.stdout.readline())
        running = [server]
        try:
            ports = {"direct": origin}
            for path, mode in (("copied", "off"), ("spliced", "required")):
                process, ports[path] = start(args.sluice, origin, folder, mode)
                running.append(process)
            pids = {process.pid for process in running}
            rounds = []
            for turn in range(args.rounds):
                order = list(ports)
                order = order[turn % 3:] + order[:turn % 3]
                rounds.append({name: {path: measure(load, ports[path], case, args.seconds, args.gigabytes, pids)
                                      for path in order} for name, case in CASES.items()})
                print(f"round {turn + 1} of {args.rounds}", flush=True)
        finally:
            for process in running:
                process.kill()
                process.wait()
    text = table(rounds, args)
    print(text)
    if args.out:
        os.makedirs(args.out, exist_ok=True)
        facts = {"kernel": os.uname().release, "cpus": os.cpu_count(), "load_average": os.getloadavg()}
        json.dump({"machine": facts, "rounds": rounds}, open(os.path.join(args.out, "raw.json"), "w"), indent=1)
        open(os.path.join(args.out, "table.md"), "w").write(text)


if __name__ == "__main__":
    main()
