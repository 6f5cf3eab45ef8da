#!/usr/bin/env python3
"""What a flood of connections from banned clients costs: turned away by the kernel, by workers, and not at all.

    bench/bans.py --sluice target/release/sluice [--rounds 5] [--seconds 5] [--rate 10000] [--out DIR]

The flood (bench/bans/flood.py) comes from 10 000 addresses in a network namespace of its own, over a
veth pair. Two sluices run all the time: kernel.bans required, and off; both have banned the whole flood. A round
measures each case in turn, in an order that rotates: no flood, a flood whose packets have another host's hardware
address (the kernel drops them before it looks at their IP header), and a flood at each sluice. Meanwhile wrk asks the
same sluice with four connections from another address. CPU is that of the whole machine, wrk's and sluice's work for
wrk included; the cost of an attempt is what a flood takes beyond the flood for nobody. Needs root, wrk and ip.
"""
import argparse, http.client, json, os, re, socket, statistics, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
SPACE, OURS, THEIRS, NOBODY = "sluice-flood", "10.89.0.1", "10.89.0.2", "10.89.0.3"
FIRST, COUNT = "10.89.64.0", 10_000


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout


def network():
    run("ip", "netns", "add", SPACE)
    run("ip", "link", "add", "sluice-f0", "type", "veth", "peer", "name", "sluice-f1", "netns", SPACE)
    run("ip", "addr", "add", OURS + "/16", "dev", "sluice-f0")
    run("ip", "link", "set", "sluice-f0", "up")
    inside = ("ip", "-n", SPACE)
    run(*inside, "link", "set", "lo", "up")
    run(*inside, "addr", "add", THEIRS + "/16", "dev", "sluice-f1")
    run(*inside, "link", "set", "sluice-f1", "up")
    run(*inside, "route", "add", "local", "10.89.64.0/18", "dev", "lo")
    mac = json.load(os.popen("ip -j link show sluice-f0"))[0]["address"]
    run(*inside, "neigh", "replace", OURS, "lladdr", mac, "dev", "sluice-f1", "nud", "permanent")
    run(*inside, "neigh", "replace", NOBODY, "lladdr", "02:00:00:00:00:99", "dev", "sluice-f1", "nud", "permanent")
    theirs = json.loads(run(*inside, "-j", "link", "show", "sluice-f1"))[0]["address"]
    # Answers to all of the flood's addresses go there, without asking for each.
    run("ip", "route", "add", "10.89.64.0/18", "via", THEIRS, "dev", "sluice-f0")
    run("ip", "neigh", "replace", THEIRS, "lladdr", theirs, "dev", "sluice-f0", "nud", "permanent")


class Sluice:
    def __init__(self, binary, folder, bans):
        self.control = os.path.join(folder, bans + ".sock")
        config = {
            "listeners": [{"name": "main", "address": OURS + ":0"}],
            "clusters": {"default": {"endpoints": ["127.0.0.1:9"]}},
            "routes": [{"respond": {"status": 200, "body": "hello"}}],
            "access_log": "off", "admin": "unix:" + self.control + ".admin", "control": "unix:" + self.control,
            "kernel": {"bans": bans},
        }
        path = os.path.join(folder, bans + ".json")
        json.dump(config, open(path, "w"))
        self.binary = binary
        self.process = subprocess.Popen([binary, "run", "--config", path], stderr=subprocess.PIPE, text=True,
                                        start_new_session=True)
        said = ""
        for line in self.process.stderr:
            said += line
            found = re.search(r'"listening".*"address":"[\d.]+:(\d+)"', line)
            if found:
                self.port = int(found[1])
                return
        raise SystemExit(f"sluice has ended: {said}")

    def ban(self):
        a, b, c, d = map(int, FIRST.split("."))
        for number in range(COUNT):
            client = f"{a}.{b}.{c + number // 256}.{number % 256}"
            body = json.dumps({"client": client, "for_ms": 3_600_000})
            connection = http.client.HTTPConnection("control")
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(self.control)
            connection.request("POST", "/v1/bans", body)
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status == 200, said
            connection.close()


def busy():
    """Time in which processors were not idle, in seconds. Idle time is measured, the rest is sampled at ticks."""
    fields = [int(word) for word in open("/proc/stat").readline().split()[1:9]]
    return time.monotonic() * os.cpu_count() - (fields[3] + fields[4]) / os.sysconf("SC_CLK_TCK")


def measure(flood, target, port, rate, seconds):
    load = subprocess.Popen(["wrk", "-t1", "-c4", f"-d{seconds}s", "--latency", f"http://{OURS}:{port}/"],
                            stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    before, attempts = busy(), 0
    if target:
        attempts = int(run("ip", "netns", "exec", SPACE, sys.executable, flood, target, FIRST, str(COUNT), str(rate), str(seconds)))
    said = load.communicate()[0]
    cpu = busy() - before
    units = {"us": 1, "ms": 1000, "s": 1e6}
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", said)
    requests = float(re.search(r"Requests/sec:\s+([\d.]+)", said)[1])
    return {"cpu_s": cpu, "attempts": attempts, "requests_per_s": requests, "p99_us": float(p99[1]) * units[p99[2]]}


def quiet_cost(flood, target, rate, seconds):
    """CPU of an attempt without other clients, in microseconds, the flood's own part included."""
    before = busy()
    attempts = int(run("ip", "netns", "exec", SPACE, sys.executable, flood, target, FIRST, str(COUNT), str(rate), str(seconds)))
    return {"cpu_us": (busy() - before) / attempts * 1e6, "attempts": attempts}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flood = os.path.join(HERE, "bans", "flood.py")
        sluices = {}
        try:
            network()
            for name, bans in (("kernel", "required"), ("workers", "off")):
                sluices[name] = Sluice(os.path.abspath(options.sluice), folder, bans)
                sluices[name].ban()
            targets = {"nobody": f"{NOBODY}:80"}
            targets |= {name: f"{OURS}:{sluice.port}" for name, sluice in sluices.items()}
            # Every client has come once, so that the kernel knows it.
            for name in sluices:
                quiet_cost(flood, targets[name], options.rate, 2)
            alone, beside = {name: [] for name in targets}, {}
            cases = [(name, None) for name in sluices] + [(name, targets[name]) for name in sluices]
            for number in range(options.rounds):
                order = list(targets)
                for name in order[number % 3:] + order[:number % 3]:
                    alone[name].append(quiet_cost(flood, targets[name], options.rate, options.seconds))
                for name, target in cases[number % 4:] + cases[:number % 4]:
                    key = f"{name}, {'flood' if target else 'quiet'}"
                    port = sluices[name].port
                    beside.setdefault(key, []).append(measure(flood, target, port, options.rate, options.seconds))
        finally:
            for sluice in sluices.values():
                sluice.process.terminate()
                sluice.process.wait()
            subprocess.run(["ip", "netns", "del", SPACE], capture_output=True)
    raw = {"command": "bench/bans.py " + " ".join(f"--{key} {value}" for key, value in vars(options).items() if key in ("rounds", "seconds", "rate")),
           "sluice": run(os.path.abspath(options.sluice), "--version").strip(), "kernel": os.uname().release,
           "alone": alone, "beside": beside}
    cost = {name: statistics.median(one["cpu_us"] for one in found) for name, found in alone.items()}
    extra = {name: [one["cpu_us"] - none["cpu_us"] for one, none in zip(alone[name], alone["nobody"])] for name in sluices}
    lines = [f"`{raw['command']}`, {raw['sluice']}, Linux {raw['kernel']}; medians of {options.rounds} rounds", "",
             "| a flood from 10 000 banned addresses | CPU of an attempt | beyond one for nobody (range) |", "|---|---:|---:|",
             f"| for nobody | {cost['nobody']:.1f} us | |"]
    for name, text in (("kernel", "turned away by the kernel"), ("workers", "turned away by workers")):
        found = extra[name]
        lines.append(f"| {text} | {cost[name]:.1f} us | {statistics.median(found):.1f} us ({min(found):.1f} to {max(found):.1f}) |")
    ratio = statistics.median(a / b for a, b in zip(extra["kernel"], extra["workers"]))
    lines += ["", f"The kernel takes {ratio:.3f} of what workers take (median of the rounds' ratios).", "",
              "| another client, 4 connections | requests/s | p99 |", "|---|---:|---:|"]
    for key, found in beside.items():
        rate, p99 = (statistics.median(one[what] for one in found) for what in ("requests_per_s", "p99_us"))
        lines.append(f"| {key} | {rate:.0f} | {p99:.0f} us |")
    table = "\n".join(lines) + "\n"
    print(table)
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        json.dump(raw, open(os.path.join(options.out, "raw.json"), "w"), indent=1)
        open(os.path.join(options.out, "table.md"), "w").write(table)


main()
