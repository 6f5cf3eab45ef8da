#!/usr/bin/env python3
"""What one greedy client costs the others when a cluster is full, with and without queue.fair_by_client.

    bench/fairness.py --sluice target/release/sluice [--rounds 5] [--seconds 6] [--out DIR]

One client sends over 500 connections at once, 50 others over one each; each connection sends its next request when it
has the answer to the last one. The application, a server of this script, takes 10 ms for a request, and eight at a
time, so the waiting line is always long. Clients are told apart by X-Forwarded-For from a trusted proxy. A round
measures fair_by_client off and on, in an order that alternates. The share of each client of one connection, were all
treated alike, is one 51st of the capacity; that of each connection is one 550th.
"""
import argparse, asyncio, contextlib, json, os, statistics, sys, tempfile, time

from running import end_on_signal, sluice

GREEDY, OTHERS = 500, 50
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def application(reader, writer):
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            await asyncio.sleep(0.010)
            writer.write(ANSWER)
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


async def client(port, address, until, times, refused):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = f"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {address}\r\n\r\n".encode()
    try:
        while time.monotonic() < until:
            begun = time.monotonic()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            if head.startswith(b"HTTP/1.1 200"):
                times.append(time.monotonic() - begun)
            else:
                refused.append(head[:12])
    finally:
        writer.close()


async def load(port, seconds):
    until = time.monotonic() + seconds
    greedy, others, refused = [], [], []
    tasks = [client(port, "10.0.0.1", until, greedy, refused) for _ in range(GREEDY)]
    tasks += [client(port, f"10.1.0.{number}", until, others, refused) for number in range(1, OTHERS + 1)]
    await asyncio.gather(*tasks)
    others.sort()
    return {
        "greedy_requests": len(greedy), "others_requests": len(others), "refused": len(refused),
        "others_p50_ms": round(others[len(others) // 2] * 1000, 1) if others else None,
        "others_p99_ms": round(others[len(others) * 99 // 100] * 1000, 1) if others else None,
    }


async def measure(arguments):
    server = await asyncio.start_server(application, "127.0.0.1", 0, backlog=1024)
    endpoint = {"address": "127.0.0.1:%d" % server.sockets[0].getsockname()[1], "max_in_flight": 8}
    with contextlib.ExitStack() as started:
        folder = started.enter_context(tempfile.TemporaryDirectory())
        sluices = {}
        for is_fair in (False, True):
            queue = {"fair_by_client": is_fair, "order": "fifo"}
            config = {"trusted_proxies": ["127.0.0.1"], "clusters": {"default": {"endpoints": [endpoint], "queue": queue}}}
            sluices[is_fair] = started.enter_context(sluice(arguments.sluice, config, folder, str(is_fair)))
        rounds = []
        for number in range(arguments.rounds):
            for is_fair in [(False, True), (True, False)][number % 2]:
                _, port = sluices[is_fair]
                rounds.append({"round": number, "fair": is_fair, **await load(port, arguments.seconds)})
                print(json.dumps(rounds[-1]), flush=True)
        return rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    end_on_signal()
    rounds = asyncio.run(measure(arguments))
    summary = {}
    for is_fair in (False, True):
        of_case = [one for one in rounds if one["fair"] == is_fair]
        share = [one["others_requests"] / (one["others_requests"] + one["greedy_requests"]) for one in of_case]
        summary["fair" if is_fair else "first come"] = {
            "share_of_others": round(statistics.median(share), 3),
            "others_p50_ms": statistics.median(one["others_p50_ms"] for one in of_case),
            "others_p99_ms": statistics.median(one["others_p99_ms"] for one in of_case),
        }
    text = json.dumps({"command": " ".join(sys.argv), "rounds": rounds, "medians": summary}, indent=1)
    print(json.dumps(summary, indent=1))
    if arguments.out:
        os.makedirs(arguments.out, exist_ok=True)
        open(os.path.join(arguments.out, "fairness.json"), "w").write(text + "\n")


main()
