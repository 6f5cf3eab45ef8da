"""Connects from many addresses, at a rate, and closes each connection when some hundred newer ones have begun.

    flood.py ADDRESS:PORT FIRST COUNT RATE SECONDS

The sources are COUNT addresses from FIRST on. Prints the attempts.
"""
import ipaddress, random, socket, sys, time

IP_BIND_ADDRESS_NO_PORT = 24  # The port is chosen at the connect, for the whole address of the peer.
OPEN_MAX = 200

address, first, count, rate, seconds = sys.argv[1:]
host, port = address.rsplit(":", 1)
target, count, rate = (host, int(port)), int(count), float(rate)
sources = [str(ipaddress.IPv4Address(first) + number) for number in range(count)]
opened = [None] * OPEN_MAX
attempts, began = 0, time.monotonic()
while (past := time.monotonic() - began) < float(seconds):
    while attempts < past * rate:
        place = attempts % OPEN_MAX
        if opened[place]:
            opened[place].close()
        one = opened[place] = socket.socket()
        one.setblocking(False)
        one.setsockopt(socket.SOL_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        one.bind((sources[attempts % count], 0))
        one.connect_ex(target)
        attempts += 1
    time.sleep(random.uniform(0.0005, 0.0015))
print(attempts)
