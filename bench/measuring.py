"""Loads servers in turn, and compares what was measured."""
import contextlib, hashlib, os, re, socket, ssl, statistics, subprocess, sys, time, urllib.request


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def family(pid):
    """A process and its children."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [pid, *map(int, file.read().split())]


def spent(pid):
    """Seconds of CPU of a process and its children, from the scheduler's own count in nanoseconds."""
    tasks = [f"/proc/{one}/task/{task}/schedstat" for one in family(pid) for task in os.listdir(f"/proc/{one}/task")]
    return sum(int(open(task).read().split()[0]) for task in tasks) / 1e9


def fetched(url, headers=None):
    """The digest of a body, as it came, and its length."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    request = urllib.request.Request(url, headers=headers or {})
    with urllib.request.urlopen(request, context=context) as response:
        body = response.read()
        return hashlib.sha256(body).hexdigest(), len(body), response.headers.get("Content-Encoding")


def load(pid, url, seconds, headers=()):
    """Requests a second over 50 connections, their p99, and the CPU of the server for one, in microseconds."""
    before = spent(pid)
    fields = [part for header in headers for part in ("-H", header)]
    command = ["wrk", "--latency", "-t", "1", "-c", "50", "-d", f"{seconds}s", *fields, url]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    requests = int(re.search(r"(\d+) requests in", said).group(1))
    if "Non-2xx" in said or "Socket errors" in said or not requests:
        sys.exit(said)
    number, unit = re.search(r"99%\s+([\d.]+)(us|ms|s)", said).groups()
    return {
        "requests_per_s": float(re.search(r"Requests/sec:\s+([\d.]+)", said).group(1)),
        "p99_us": float(number) * {"us": 1, "ms": 1e3, "s": 1e6}[unit],
        "cpu_us": (spent(pid) - before) / requests * 1e6,
    }


def wait_for(url, wanted):
    """Waits until a server responds with a body of this digest."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            if fetched(url)[0] == wanted:
                return
        time.sleep(0.1)
    sys.exit(f"{url} is not the file")


def summary(rounds, names):
    """Medians, and the medians of the ratios of each round with the smallest and the largest, by case and server."""
    result = {}
    for size in rounds[0]:
        for name in names:
            of_sluice, of_peer = ([one[size][who] for one in rounds] for who in ("sluice", name))
            entry = {key: round(statistics.median(one[key] for one in of_peer), 1) for key in of_peer[0]}
            for key in of_peer[0] if name != "sluice" else ():
                ratios = [ours[key] / theirs[key] for ours, theirs in zip(of_sluice, of_peer)]
                entry["sluice_over_it_" + key] = [
                    round(value, 3) for value in (statistics.median(ratios), min(ratios), max(ratios))]
            result.setdefault(size, {})[name] = entry
    return result
