#!/usr/bin/env python3
"""Mixed load on sluice for a while, with everything accounted for.

    bench/soak.py --sluice target/release/sluice --origin PATH-OF-GO-ORIGIN [--seconds 600] [--out DIR]

Two Go origins stand behind sluice; every ten seconds one of them is killed or ended and started again. Clients
ask for bodies of known content, upload with a checksum, ask for errors, go away in the middle, on kept and on
new connections. Each answer must be the right one for its request, a 502, 503 or 504 of sluice, or visibly cut;
every request that was not aborted must get an answer; the access log must have a line for each exchange.
At the end descriptors and memory must be back where they were after the warm-up.
"""
import argparse, hashlib, json, os, random, re, signal, socket, struct, subprocess, tempfile, threading, time
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
                # A kept connection may be closed by sluice as the request leaves; a new one may not.
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


def settled(pid):
    """Facts once idle connections (4 s) and half-sent heads (10 s) have timed out."""
    time.sleep(15)
    return facts(pid)


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
    log = f"{directory}/access.log"
    sluice = subprocess.Popen([args.sluice, "run", "--listen", f"127.0.0.1:{port}", "--to", f"127.0.0.1:{origins[0]}",
                               "--to", f"127.0.0.1:{origins[1]}", "--workers", "2", "--admin", "off",
                               "--set", f"access_log={log}"], stderr=subprocess.DEVNULL)
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
        sluice.terminate()
        code = sluice.wait(40)
        lines = sum(1 for _ in open(log))
        by_status = Counter(json.loads(line)["status"] for line in open(log))
    finally:
        for process in running + [sluice]:
            if process.poll() is None:
                process.kill()
    total = counts + warm
    answered = sum(n for k, n in total.items() if k not in ("aborted", "closed"))
    wrong = {k: n for k, n in total.items() if k.startswith(("WRONG", "LOST", "HUNG"))}
    return {"seconds": args.seconds, "restarts": number, "outcomes": dict(total), "wrong": wrong, "log_lines": lines,
            "log_statuses": dict(by_status), "answered": answered, "before": before, "after": after, "exit": code,
            "passed": not wrong and lines >= answered and code == 0
            and after["descriptors"] <= before["descriptors"] + 2 and after["rss_kb"] <= before["rss_kb"] * 1.25 + 4096}


main()
