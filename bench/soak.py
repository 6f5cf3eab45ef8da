#!/usr/bin/env python3
"""Mixed load on sluice for a while, with everything accounted for.

    bench/soak.py --sluice target/release/sluice --origin PATH-OF-GO-ORIGIN [--seconds 600] [--out DIR] \\
                  [--set kernel.bypass=required …]

Two Go origins run behind sluice; every ten seconds one of them is killed or shut down, and started again. Clients
request bodies of known content, upload with a checksum, request errors and go away in the middle, on keep-alive and on
new connections. Each response must be the correct one for its request, a 502, 503 or 504 of sluice, or visibly cut.
Every request that was not aborted must get a response, and the access log must have a line for each exchange. At the
end, descriptors and memory must be back where they were after the warm-up, and so must the kernel's sockets, the memory
of their queues, its unreclaimable slab, and the entries of sluice's BPF maps. Then sluice is killed with SIGKILL under
load: no program, map or link of it may be left, and a new one must serve at once.
"""
import argparse, glob, hashlib, json, os, random, re, signal, socket, struct, subprocess, tempfile, threading, time
import urllib.request
from collections import Counter
from multiprocessing import Process, Queue

PERIOD, BLOCK = 65521, 65536


def pattern():
    out = bytearray(PERIOD + BLOCK)
    for i in range(len(out)):
        n = i % PERIOD
        out[i] = ((n * 2654435761 & 0xFFFFFFFF) >> 16 & 0xFF) ^ (n & 0xFF)
    return bytes(out)


PATTERN = pattern()


def body(n):
    return (PATTERN[:PERIOD] * (n // PERIOD + 1))[:n]


class Client:
    def __init__(self, port, seed):
        self.port, self.random, self.sock, self.buf, self.counts = port, random.Random(seed), None, b"", Counter()

    def connect(self):
        if self.sock is None:
            self.sock, self.buf = socket.create_connection(("127.0.0.1", self.port), 20), b""

    def drop(self, reset=False):
        if self.sock is not None:
            if reset:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.sock.close()
            self.sock = None

    def head(self):
        while b"\r\n\r\n" not in self.buf:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError("before the head")
            self.buf += data
        head, _, self.buf = self.buf.partition(b"\r\n\r\n")
        return int(head[9:12]), head.lower()

    def rest(self, head):
        length = re.search(rb"\r\ncontent-length: (\d+)", head)
        if not length:
            raise ValueError(b"no length: " + head)
        want, parts, have = int(length.group(1)), [self.buf], len(self.buf)
        while have < want:
            data = self.sock.recv(1 << 18)
            if not data:
                raise EOFError("within the body")
            parts.append(data)
            have += len(data)
        data = b"".join(parts)
        self.buf = data[want:]
        return data[:want]

    def once(self):
        kind = self.random.choice(["get"] * 6 + ["big", "post", "missing", "abort_request", "abort_answer", "bad"])
        close = self.random.random() < 0.2
        extra = b"Connection: close\r\n" if close else b""
        n = self.random.choice([0, 1, 1000, 8192, 16384, 50000]) if kind != "big" else self.random.randrange(1 << 18, 1 << 21)
        line, payload, expected = b"GET /bytes?n=%d" % n, b"", body(n)
        if kind == "post":
            n = self.random.randrange(0, 300000)
            payload = body(n)
            line, expected = b"POST /upload", hashlib.sha256(payload).hexdigest().encode() + b"\n"
            extra += b"Content-Length: %d\r\n" % n
        elif kind == "missing":
            line, expected = b"GET /nowhere", None
        elif kind == "bad":
            extra += b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"
        request = line + b" HTTP/1.1\r\nHost: soak\r\n" + extra + b"\r\n" + payload
        self.connect()
        if kind == "abort_request":
            self.sock.sendall(request[: self.random.randrange(1, len(request))])
            self.drop(self.random.random() < 0.5)
            return "aborted"
        self.sock.sendall(request)
        if kind == "abort_answer":
            self.sock.recv(self.random.randrange(1, 4096))
            self.drop(self.random.random() < 0.5)
            return "aborted"
        status, head = self.head()
        try:
            data = self.rest(head)
        except (EOFError, ConnectionError):
            self.drop()
            return "cut"
        if b"\r\nconnection: close" in head:
            self.drop()
        if status in (502, 503, 504):
            return str(status)
        if kind == "bad":
            return "400" if status == 400 else f"WRONG bad request got {status}"
        if kind == "missing":
            return "404" if status == 404 else f"WRONG missing got {status}"
        return "ok" if status == 200 and data == expected else f"WRONG {kind} {n}: {status}, {len(data)} bytes"

    def run(self, end):
        while time.time() < end:
            fresh = self.sock is None
            try:
                result = self.once()
            except (EOFError, ConnectionError) as error:
                self.drop()
                # sluice may close a keep-alive connection while the request leaves, but not a new one.
                result = "closed" if not fresh else f"LOST {error!r}"
            except socket.timeout:
                self.drop()
                result = "HUNG"
            self.counts[result] += 1
        self.drop()


def worker(port, seed, end, queue):
    clients = [Client(port, seed * 100 + i) for i in range(12)]
    threads = [threading.Thread(target=client.run, args=(end,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.put(sum((client.counts for client in clients), Counter()))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def facts(pid):
    status = open(f"/proc/{pid}/status").read()
    return {"descriptors": len(os.listdir(f"/proc/{pid}/fd")), "rss_kb": int(re.search(r"VmRSS:\s+(\d+)", status).group(1))}


def bpf_ids(pid):
    """Kinds and ids of the BPF objects that a process holds."""
    found = set()
    for name in glob.glob(f"/proc/{pid}/fdinfo/*"):
        try:
            found.update(re.findall(r"^(prog|map|link)_id:\s+(\d+)", open(name).read(), re.M))
        except OSError:
            pass
    return found


def bpf_exists(kind, number):
    return subprocess.run(["bpftool", kind, "show", "id", number], capture_output=True).returncode == 0


def kernel_facts(pid):
    """Sockets and memory of the whole machine, and how many connections sluice's map knows of."""
    sockstat = re.search(r"TCP: inuse (\d+) orphan (\d+) tw \d+ alloc (\d+) mem (\d+)", open("/proc/net/sockstat").read())
    names = ("sockets_in_use", "sockets_orphaned", "sockets_allocated", "socket_memory_pages")
    result = dict(zip(names, map(int, sockstat.groups())))
    result["slab_unreclaimable_kb"] = int(re.search(r"SUnreclaim:\s+(\d+)", open("/proc/meminfo").read()).group(1))
    for kind, number in bpf_ids(pid):
        if kind == "map":
            shown = json.loads(subprocess.run(["bpftool", "-j", "map", "show", "id", number], capture_output=True).stdout or "{}")
            if shown.get("name") == "KNOWN":
                dump = subprocess.run(["bpftool", "-j", "map", "dump", "id", number], capture_output=True).stdout
                result["map_entries"] = len(json.loads(dump or "[]"))
    return result


def settled(pid):
    """Facts once idle connections (4 s) and half-sent heads (10 s) have timed out."""
    time.sleep(15)
    return facts(pid) | kernel_facts(pid)


def leaks(before, after):
    """What has grown by more than the noise of other processes, which have sockets and slab too."""
    slack = {"descriptors": 2, "rss_kb": before["rss_kb"] // 4 + 4096, "sockets_in_use": 10, "sockets_orphaned": 4,
             "sockets_allocated": 20, "socket_memory_pages": 512, "slab_unreclaimable_kb": 16384, "map_entries": 0}
    return {name: [before[name], after[name]] for name in before if after[name] > before[name] + slack[name]}


def killed(start_sluice, port):
    """SIGKILL under load: which of its BPF objects are left, and whether a new process serves at once."""
    sluice = start_sluice()
    time.sleep(1)
    queue, processes = load(port, 6)
    time.sleep(2)
    objects = bpf_ids(sluice.pid)
    sluice.kill()
    sluice.wait()
    end = time.time() + 10
    while (left := [o for o in objects if bpf_exists(*o)]) and time.time() < end:
        time.sleep(0.1)
    sluice = start_sluice()
    try:
        queue.get(), queue.get()
        client, outcomes = Client(port, 7), Counter()
        for _ in range(300):
            try:
                outcomes[client.once()] += 1
            except (EOFError, ConnectionError):
                client.drop()
                outcomes["closed"] += 1
    finally:
        sluice.terminate()
        sluice.wait(40)
    wrong = {k: n for k, n in outcomes.items() if k.startswith("WRONG")}
    return {"objects": len(objects), "left": left, "outcomes_after": dict(outcomes), "passed": not left and not wrong and outcomes["ok"] > 100}


def load(port, seconds):
    queue, end = Queue(), time.time() + seconds
    processes = [Process(target=worker, args=(port, seed, end, queue)) for seed in range(2)]
    for process in processes:
        process.start()
    return queue, processes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--origin", required=True)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--out")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = run(args, directory)
    print(json.dumps(result, indent=1))
    if args.out:
        os.makedirs(args.out, exist_ok=True)
        with open(f"{args.out}/raw.json", "w") as f:
            json.dump(result, f, indent=1)
    raise SystemExit(0 if result["passed"] else 1)


def run(args, directory):
    origins, port = [free_port(), free_port()], free_port()
    start = lambda p: subprocess.Popen([args.origin, "-listen", f"127.0.0.1:{p}"], stderr=subprocess.DEVNULL)
    running = [start(p) for p in origins]
    log, admin = f"{directory}/access.log", free_port()
    command = [args.sluice, "run", "--listen", f"127.0.0.1:{port}", "--to", f"127.0.0.1:{origins[0]}",
               "--to", f"127.0.0.1:{origins[1]}", "--workers", "2"]
    for setting in args.set:
        command += ["--set", setting]
    sluice = subprocess.Popen(command + ["--admin", f"127.0.0.1:{admin}", "--set", f"access_log={log}"],
                              stderr=subprocess.DEVNULL)
    start_again = lambda: subprocess.Popen(command + ["--admin", "off", "--set", "access_log=off"], stderr=subprocess.DEVNULL)
    try:
        time.sleep(1)
        queue, processes = load(port, 10)
        warm = queue.get() + queue.get()
        before = settled(sluice.pid)
        queue, processes = load(port, args.seconds)
        began, number = time.time(), 0
        while time.time() < began + args.seconds - 15:
            time.sleep(10)
            which = number % 2
            running[which].send_signal(signal.SIGKILL if number % 4 < 2 else signal.SIGTERM)
            running[which].wait()
            time.sleep(0.5)
            running[which] = start(origins[which])
            number += 1
        counts = queue.get() + queue.get()
        after = settled(sluice.pid)
        page = urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics").read().decode()
        counted = dict(re.findall(r"^(sluice_(?:bypass|path)\S*) (\S+)$", page, re.M))
        objects = bpf_ids(sluice.pid)
        sluice.terminate()
        code = sluice.wait(40)
        time.sleep(1)
        left = [o for o in objects if bpf_exists(*o)]
        lines = sum(1 for _ in open(log))
        by_status = Counter(json.loads(line)["status"] for line in open(log))
        kill = killed(start_again, port)
    finally:
        for process in running + [sluice]:
            if process.poll() is None:
                process.kill()
    total = counts + warm
    answered = sum(n for k, n in total.items() if k not in ("aborted", "closed"))
    wrong = {k: n for k, n in total.items() if k.startswith(("WRONG", "LOST", "HUNG"))}
    return {"seconds": args.seconds, "restarts": number, "outcomes": dict(total), "wrong": wrong, "log_lines": lines,
            "log_statuses": dict(by_status), "answered": answered, "settings": args.set, "counted": counted,
            "before": before, "after": after, "leaks": leaks(before, after), "bpf_objects": len(objects),
            "bpf_left": left, "killed": kill, "exit": code,
            "passed": not wrong and lines >= answered and code == 0 and not leaks(before, after) and not left
            and kill["passed"]}


main()
