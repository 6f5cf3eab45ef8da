#!/usr/bin/env python3
"""What a fleet costs its store, and how that grows with its members: real clients in one process, a real etcd or Redis.

    bench/fleet.py [--engine etcd|redis] [--members 1,10,100,300,1000] [--out DIR]

The members are those of `proxy/control/src/fleet/simulation.rs`: the code that a sluice has, but for the serving itself. For
each number of members, the result says what the engine spends while nothing happens (presence), and how long a deploy takes
until all members have switched, what it costs the engine, and how many bytes it sends. At last, a thousand services with ten
targets each are stored, and a member reads them at its start.
"""
import argparse, contextlib, json, os, re, subprocess, sys, tempfile, time, urllib.request

from measuring import free_port, spent
from running import end_on_signal, program

IDLE_S, DEPLOYS = 20, 5
SERVICES, TARGETS = 1000, 10
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def simulation():
    """Builds the members, and returns their program."""
    command = ["cargo", "test", "--release", "--no-run", "--package", "sluice-control", "--lib", "--message-format=json"]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in said.splitlines():
        with contextlib.suppress(ValueError):
            message = json.loads(line)
            if message.get("executable") and message.get("target", {}).get("name") == "sluice_control":
                return message["executable"]
    sys.exit("cargo has built no test")


class Members:
    """The members; each command ends when it is done."""
    def __init__(self, binary, store):
        command = [binary, "--ignored", "--exact", "--nocapture", "fleet::simulation::obey"]
        environment = {**os.environ, "SLUICE_SIMULATED_STORE": json.dumps(store)}
        self.process = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def obey(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        for said in self.process.stdout:
            if found := re.search(r"done ([\d.]+)", said):
                return float(found.group(1))
        sys.exit(f"the members ended at {line!r}")


class Etcd:
    def __init__(self, folder):
        self.port, peer = free_port(), free_port()
        url, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer}"
        command = ["etcd", "--data-dir", os.path.join(folder, "etcd"), "--listen-client-urls", url,
                   "--advertise-client-urls", url, "--listen-peer-urls", peer,
                   "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        self.running = program(command, **SILENT)
        self.store = {"etcd": {"endpoints": [url], "prefix": "/fleet/"}, "member": "NAME"}

    def version(self):
        return subprocess.run(["etcd", "--version"], capture_output=True, text=True).stdout.splitlines()[0]

    def sent(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as response:
            text = response.read().decode()
        return sum(float(value) for value in re.findall(r"^etcd_network_client_grpc_sent_bytes_total (\S+)", text, re.M))


class Redis:
    def __init__(self, folder):
        self.port = free_port()
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        self.running = program(command, **SILENT)
        self.store = {"redis": {"address": f"127.0.0.1:{self.port}", "prefix": "fleet:"}, "member": "NAME"}

    def version(self):
        return subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout.strip()

    def sent(self):
        said = subprocess.run(["redis-cli", "-p", str(self.port), "info", "stats"], capture_output=True, text=True).stdout
        return float(re.search(r"total_net_output_bytes:(\d+)", said).group(1))


def measured(engine, process, members, line):
    cpu, sent = spent(process.pid), engine.sent()
    seconds = members.obey(line)
    return seconds, spent(process.pid) - cpu, engine.sent() - sent


def rounded(value):
    return float(f"{value:.3g}")


def main():
    end_on_signal()
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--engine", choices=["etcd", "redis"], default="etcd")
    options.add_argument("--members", default="1,10,100,300,1000")
    options.add_argument("--out", default="bench/results/fleet")
    options = options.parse_args()
    binary = simulation()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        engine = {"etcd": Etcd, "redis": Redis}[options.engine](folder)
        with engine.running as process:
            time.sleep(3)
            members = Members(binary, engine.store)
            with contextlib.closing(members.process.stdin):
                for count in map(int, options.members.split(",")):
                    joined = members.obey(f"join {count}")
                    idle, idle_cpu, idle_sent = measured(engine, process, members, f"idle {IDLE_S}")
                    own = spent(members.process.pid)
                    took, cpu, sent = measured(engine, process, members, f"deploy {DEPLOYS}")
                    results.append({
                        "members": count, "joined_s": rounded(joined),
                        "idle_engine_cpu_percent": rounded(100 * idle_cpu / idle),
                        "idle_sent_bytes_per_s": round(idle_sent / idle),
                        "deploy_s": rounded(took / DEPLOYS), "deploy_engine_cpu_s": rounded(cpu / DEPLOYS),
                        "deploy_sent_bytes": round(sent / DEPLOYS),
                        "deploy_members_cpu_s": rounded((spent(members.process.pid) - own) / DEPLOYS),
                    })
                    print(json.dumps(results[-1]), flush=True)
                members.process.stdin.write("end\n")
                members.process.stdin.flush()
            members.process.wait()
            alone = Members(binary, engine.store)
            with contextlib.closing(alone.process.stdin):
                alone.obey("join 1")
                stored = alone.obey(f"services {SERVICES} {TARGETS}")
                took, _, sent = measured(engine, process, alone, f"read {SERVICES}")
                alone.process.stdin.write("end\n")
                alone.process.stdin.flush()
            alone.process.wait()
            start = {"services": SERVICES, "targets": SERVICES * TARGETS, "read_s": rounded(took),
                     "read_bytes": round(sent), "deploy_s": rounded(stored / SERVICES)}
            print(json.dumps(start))
    os.makedirs(options.out, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    document = {"command": " ".join(sys.argv), "commit": commit, "engine": engine.version(), "cores": os.cpu_count(),
                "idle_s": IDLE_S, "deploys": DEPLOYS, "fleets": results, "start": start}
    with open(os.path.join(options.out, f"{options.engine}.json"), "w") as file:
        file.write(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
