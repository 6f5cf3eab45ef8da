#!/usr/bin/env python3
"""Compares sluice with another proxy, request by request.

    SLUICE=target/release/sluice ./run.py nginx|haproxy|caddy|traefik

The folder of the peer has its configuration, the same in sluice.yaml, and requests.jsonl: a request in each line, which
both proxies get as raw bytes. What they answer and what reaches the application behind them must be the same. Where it is
not, `differs` says why and `differs_in` what: a row that differs otherwise, or no more, is a failure.

Keys of a row: method, target, headers, why (what the row tries); optional: body (a text, or a number of bytes), chunked,
version, to (the listener: "redirect" or "proxy"), proxy (the client in a PROXY header), from (the source address), status
(of the application's response), page (the body counts, although the status is not 200: proxies word their errors in their
own ways). compare.json names the fields that are compared: those of
requests, of all responses, and of responses that an application has a part in.

SLUICE, NGINX, HAPROXY, CADDY and TRAEFIK are the paths of the binaries, unless they are on PATH; TRAEFIK_VERSION and the
like name the version of a binary that does not tell it. Exit code: 0 if all is as said, 1 if not, 77 without the peer.
"""
import asyncio
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = {
    "nginx": (["-p", "{folder}", "-c", "{folder}/peer.conf", "-e", "{folder}/error.log"], ["-v"]),
    "haproxy": (["-db", "-f", "{folder}/peer.conf"], ["-v"]),
    "caddy": (["run", "--adapter", "caddyfile", "--config", "{folder}/peer.conf"], ["version"]),
    "traefik": (["--configFile={folder}/peer-static.yml"], ["version"]),
}
READY = b"GET /ready HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n"
# The origin has more fields than a row compares: those that proxies are told to remove or to replace are among them.
ORIGIN_FIELDS = ["Content-Type: application/json", "Server: echo/1", "X-Powered-By: echo", "X-App: yes",
                 "Cache-Control: no-cache", "Vary: Accept", "Access-Control-Allow-Origin: https://evil.test",
                 "Set-Cookie: a=1", "Set-Cookie: b=2"]


class Origins:
    """The applications behind the proxies: each listens on a port of its own and keeps the requests that it got."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def listen(self, answer):
        """Starts a server that sends what answer(request) returns; returns its port."""
        start = asyncio.start_server(lambda r, w: self.serve(answer, r, w), "127.0.0.1", 0, limit=1 << 20)
        return asyncio.run_coroutine_threadsafe(start, self.loop).result().sockets[0].getsockname()[1]

    async def serve(self, answer, reader, writer):
        try:
            while True:
                request = await read_request(reader)
                writer.write(answer(request))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            pass                                # the proxy has closed the connection, or broken off a body
        finally:
            writer.close()


async def read_request(reader):
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")[:-2]
    method, target, _ = lines[0].split(" ", 2)
    headers = [[name.strip().lower(), value.strip()] for name, value in (l.split(":", 1) for l in lines[1:])]
    fields, size = dict(headers), 0
    if "chunked" in fields.get("transfer-encoding", ""):
        while chunk := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            await reader.readexactly(chunk + 2)
            size += chunk
        await reader.readuntil(b"\r\n")
    else:
        size = len(await reader.readexactly(int(fields.get("content-length", 0))))
    return {"method": method, "target": target, "host": fields.get("host"), "headers": headers, "body": size}


def response(request, status, fields, body):
    head = "\r\n".join([f"HTTP/1.1 {status} X", *fields, f"Content-Length: {len(body)}", "", ""])
    return head.encode() + (b"" if request["method"] == "HEAD" or status in ("204", "304") else body)


def application(seen):
    """Answers with the status that the row asks for, and keeps each request in the list `seen`."""
    def answer(request):
        seen.append(request)
        return response(request, dict(request["headers"]).get("x-echo-status", "200"), ORIGIN_FIELDS, b'{"echo": true}')
    return answer


def helper(request):
    """Decides about requests for auth_request and the like, and serves the pages that Traefik fetches from a service."""
    if request["target"].startswith("/pages/"):
        with open(os.path.join(HERE, "traefik", "pages", os.path.basename(request["target"])), "rb") as page:
            return response(request, "200", ["Content-Type: text/html"], page.read())
    token = dict(request["headers"]).get("x-token")
    if token == "good":
        return response(request, "200", ["Remote-User: ann", "Set-Cookie: renewed=1"], b"")
    if token == "login":
        return response(request, "302", ["Location: https://login.example.com/"], b"")
    if token == "denied":
        return response(request, "403", ["Content-Type: text/plain"], b"no")
    return response(request, "401", ["WWW-Authenticate: Bearer"], b"who?")


def bound_socket():
    """A socket that has a port, but does not listen: nothing else gets the port, and connecting to it fails.

    The port is below those that the kernel gives to outgoing connections, because one of these may take it between the
    moment when the socket is closed and that when a proxy listens.
    """
    while True:
        s, port = socket.socket(), random.randrange(12000, 32000)
        try:
            s.bind(("127.0.0.1", port))
            return s, port
        except OSError:
            s.close()


def fill(folder, values):
    """Puts ports and paths in place of $PORT and the like in the copied configuration."""
    for name in os.listdir(folder):
        if name.endswith((".conf", ".yaml", ".yml")):
            path = os.path.join(folder, name)
            with open(path) as file:
                text = file.read()
            with open(path, "w") as file:
                file.write(re.sub(r"\$(" + "|".join(values) + r")\b", lambda m: values[m[1]], text))


class Proxy:
    """A running proxy with its ports and what its application has seen."""

    def __init__(self, name, command, folder, origins, help_port, dead_port):
        self.seen = []
        os.chmod(folder, 0o755)                 # nginx's workers are another user
        sockets = [bound_socket() for _ in range(3)]
        self.ports = dict(zip((None, "redirect", "proxy"), (port for _, port in sockets)))
        app = origins.listen(application(self.seen))
        fill(folder, {"PORT": str(self.ports[None]), "REDIRECT_PORT": str(self.ports["redirect"]),
                      "PROXY_PORT": str(self.ports["proxy"]), "FOLDER": folder, "APP": f"127.0.0.1:{app}",
                      "DEAD": f"127.0.0.1:{dead_port}", "HELP": f"127.0.0.1:{help_port}"})
        for s, _ in sockets:                    # the ports stay taken until here
            s.close()
        self.log = os.path.join(folder, "output.log")
        with open(self.log, "w") as log:
            env = dict(os.environ, HOME=folder, XDG_DATA_HOME=folder, XDG_CONFIG_HOME=folder)
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=env)
        self.name = name

    def wait(self):
        """Until it serves a route: an open port is not enough, because Traefik reads its routes later."""
        for _ in range(150):
            if self.process.poll() is not None:
                break
            try:
                if exchange(self.ports[None], "127.0.0.1", READY, b"", "GET")["status"] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        with open(self.log) as log:
            raise RuntimeError(f"{self.name} does not start: {log.read()[-3000:]}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def ask(self, row):
        self.seen.clear()
        port = self.ports[row.get("to")]
        head, body = request_bytes(row, port)
        result = exchange(port, row.get("from", "127.0.0.1"), head, body, row["method"])
        result["seen"] = list(self.seen)
        return result


def request_bytes(row, port):
    """Head and body exactly as the row says, however wrong; what it does not say is made right."""
    headers, body = [list(h) for h in row["headers"]], row.get("body")
    names = {name.lower() for name, _ in headers}
    if "status" in row:
        headers.append(["X-Echo-Status", row["status"]])
    data = b"" if body is None else b"x" * body if isinstance(body, int) else body.encode()
    if row.get("chunked"):
        headers.append(["Transfer-Encoding", "chunked"])
        data = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
    elif body is not None and "content-length" not in names:
        headers.append(["Content-Length", len(data)])
    if "connection" not in names:
        headers.append(["Connection", "close"])
    text = f"{row['method']} {row['target']} {row.get('version', 'HTTP/1.1')}\r\n"
    text += "".join(f"{name}: {value}\r\n" for name, value in headers) + "\r\n"
    if "proxy" in row:
        text = f"PROXY TCP4 {row['proxy']} 127.0.0.1 4711 {port}\r\n" + text
    return text.encode("latin1"), data


def exchange(port, source, head, body, method):
    """Sends a request and reads its response; a status of None stands for a closed connection."""
    with socket.socket() as s:
        s.settimeout(8)
        s.bind((source, 0))
        s.connect(("127.0.0.1", port))
        try:
            s.sendall(head + body)
        except OSError:
            pass                                # the proxy may refuse before it has read everything
        try:
            return read_response(s.makefile("rb"), method)
        except (OSError, ValueError, IndexError):
            return {"status": None, "headers": [], "body": ""}


def read_response(file, method):
    status = int(file.readline().split(b" ")[1])
    headers = []
    while (line := file.readline().decode("latin1").strip()):
        name, value = line.split(":", 1)
        headers.append([name.lower(), value.strip()])
    if status == 100:
        return read_response(file, method)
    fields, body = dict(headers), b""
    if method == "HEAD" or status in (204, 304):
        pass
    elif "chunked" in fields.get("transfer-encoding", ""):
        while (size := int(file.readline().split(b";")[0], 16)):
            body += file.read(size)
            file.readline()
    else:
        body = file.read(int(fields["content-length"])) if "content-length" in fields else read_rest(file)
    return {"status": status, "headers": headers, "body": body.decode("latin1")}


def read_rest(file):
    """Up to the end of the connection, which may be a reset if the proxy has not read the whole request."""
    body = b""
    try:
        while (part := file.read1(65536)):
            body += part
    except ConnectionError:
        pass
    return body


def values(headers, name):
    """The values of a field; those of Vary are a list, which may as well be one field."""
    found = [value for key, value in headers if key == name]
    return sorted(item.strip() for value in found for item in value.split(",")) if name == "vary" else found


def compare(row, peer, sluice, rules):
    """All differences, as what: (peer, sluice). Bodies and fields of unlike responses tell nothing more."""
    pairs = {f"status {peer['status']} {sluice['status']}": (peer["status"], sluice["status"]),
             "location": [values(r["headers"], "location") for r in (peer, sluice)],
             # The charset of RFC 7617 asks browsers for UTF-8, and nothing else.
             "www-authenticate": [[v.replace(', charset="UTF-8"', "") for v in values(r["headers"], "www-authenticate")]
                                  for r in (peer, sluice)],
             "reached": [len(r["seen"]) for r in (peer, sluice)]}
    if peer["status"] == sluice["status"]:
        for name in rules["response_headers"]:
            pairs["response " + name] = [values(r["headers"], name) for r in (peer, sluice)]
        if peer["status"] == 200 or "page" in row:
            pairs["body"] = (peer["body"], sluice["body"])
    if peer["seen"] and sluice["seen"]:
        for name in rules["application_headers"]:
            pairs["response " + name] = [values(r["headers"], name) for r in (peer, sluice)]
        a, b = peer["seen"][-1], sluice["seen"][-1]
        for name in ("method", "target", "host", "body"):
            pairs["request " + name] = (a[name], b[name])
        for name in rules["request_headers"]:
            pairs["request " + name] = (values(a["headers"], name), values(b["headers"], name))
    return {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}


def version(binary, name):
    text = subprocess.run([binary, *PEERS[name][1]], capture_output=True, text=True)
    found = re.search(r"(?i)(?:version:?|nginx/|^v)\s*v?(\d+\.\d+\.\d+)", text.stdout + text.stderr)
    return found[1] if found else os.environ.get(name.upper() + "_VERSION", "of unknown version")


def start(who, command, source, folder, origins, help_port, dead_port):
    """Starts a proxy; with other ports if another program took one of them before the proxy could listen."""
    for attempt in range(3):
        own = os.path.join(folder, f"{who}{attempt}")
        shutil.copytree(source, own)
        proxy = Proxy(who, [part.format(folder=own) for part in command], own, origins, help_port, dead_port)
        try:
            proxy.wait()
            return proxy
        except BaseException as error:
            proxy.stop()
            if attempt == 2 or "in use" not in str(error):
                raise


def run(name, binary, sluice, folder):
    """Starts both, tries all rows, and returns the last line and whether all is as said."""
    origins, proxies = Origins(), []
    dead, dead_port = bound_socket()
    help_port = origins.listen(helper)
    commands = {name: [binary, *PEERS[name][0]], "sluice": [sluice, "run", "--config", "{folder}/sluice.yaml"]}
    try:
        for who, command in commands.items():
            proxies.append(start(who, command, os.path.join(HERE, name), folder, origins, help_port, dead_port))
        return try_rows(name, binary, *proxies)
    finally:
        for proxy in proxies:
            proxy.stop()
        dead.close()


def try_rows(name, binary, peer, sluice):
    with open(os.path.join(HERE, name, "compare.json")) as file:
        rules = json.load(file)
    with open(os.path.join(HERE, name, "requests.jsonl")) as file:
        rows = [json.loads(line) for line in file]
    counts = {"equal": 0, "differ on purpose": 0, "differ without a reason": 0, "stale": 0}
    for number, row in enumerate(rows, 1):
        found = compare(row, peer.ask(row), sluice.ask(row), rules)
        if not found:
            kind = "stale" if "differs" in row else "equal"
        else:
            kind = "differ on purpose" if sorted(found) == row.get("differs_in") else "differ without a reason"
        counts[kind] += 1
        if kind in ("stale", "differ without a reason"):
            print(f"row {number} ({kind}): {row['method']} {row['target'][:100]} -- {row['why']}")
            print(*(f"    {w}: {name} {str(a)[:200]}  sluice {str(b)[:200]}\n" for w, (a, b) in found.items()), sep="", end="")
    line = f"{name} {version(binary, name)}: {len(rows)} rows, " + ", ".join(f"{n} {kind}" for kind, n in counts.items())
    return line, counts["differ without a reason"] + counts["stale"] == 0


def binary_of(name):
    return shutil.which(os.environ.get(name.upper(), name), path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in PEERS:
        raise SystemExit(__doc__)
    name = sys.argv[1]
    binary, sluice = binary_of(name), binary_of("sluice")
    if sluice is None:
        raise SystemExit("no binary of sluice; set SLUICE to its path")
    if binary is None:
        print(f"{name}: no binary; set {name.upper()} to its path")
        sys.exit(77)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))    # so that what was started is stopped
    folder = tempfile.mkdtemp(prefix=f"compare-{name}-")
    os.chmod(folder, 0o755)
    try:
        line, good = run(name, os.path.abspath(binary), os.path.abspath(sluice), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(line)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
