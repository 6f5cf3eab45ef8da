"""What aioquic, another implementation of QUIC and HTTP/3, sees of a sluice in front of its demo origin.

    http3_client.py PORT MEGABYTES

Prints one line for each step. Any other outcome is an exception.
"""
import asyncio, base64, hashlib, os, ssl, sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, StreamReset

PORT, MEGABYTES = int(sys.argv[1]), int(sys.argv[2])
BASE = [(b":scheme", b"https"), (b":authority", b"localhost")]


class Client(QuicConnectionProtocol):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.http = H3Connection(self._quic)
        self.streams, self.resumed, self.ended = {}, None, None

    def quic_event_received(self, event):
        if isinstance(event, HandshakeCompleted):
            self.resumed = event.session_resumed
        if isinstance(event, ConnectionTerminated):
            self.ended = event
            for stream in self.streams.values():
                stream.done.set()
        if isinstance(event, StreamReset) and event.stream_id in self.streams:
            self.streams[event.stream_id].done.set()
        for event in self.http.handle_event(event):
            stream = self.streams.get(event.stream_id)
            if stream and isinstance(event, HeadersReceived):
                stream.heads.append(dict(event.headers))
            if stream and isinstance(event, DataReceived):
                stream.take(event.data)
            if stream and event.stream_ended:
                stream.is_whole = True
                stream.done.set()

    def open(self, head, ends):
        number = self._quic.get_next_available_stream_id()
        self.streams[number] = Stream()
        self.http.send_headers(number, head, end_stream=ends)
        self.transmit()
        return number

    async def finish(self, number):
        stream = self.streams[number]
        await asyncio.wait_for(stream.done.wait(), 300)
        assert stream.is_whole, (number, stream.heads, self.ended)
        return stream

    async def get(self, path):
        return await self.finish(self.open([(b":method", b"GET"), *BASE, (b":path", path.encode())], True))

    async def post(self, path, body, trailers=None):
        number = self.open([(b":method", b"POST"), *BASE, (b":path", path.encode())], False)
        self.http.send_data(number, body, end_stream=trailers is None)
        if trailers:
            self.http.send_headers(number, trailers, end_stream=True)
        self.transmit()
        return await self.finish(number)


class Stream:
    def __init__(self):
        self.heads, self.length, self.digest = [], 0, hashlib.sha256()
        self.done, self.is_whole, self.more, self.last = asyncio.Event(), False, asyncio.Event(), b""

    def take(self, data):
        self.length += len(data)
        self.digest.update(data)
        self.last = (self.last + data)[-100_000:]
        self.more.set()


def client(**options):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE,
                                      server_name="localhost", max_data=1 << 24, max_stream_data=1 << 24, **options)
    return configuration


def session(**options):
    return connect("127.0.0.1", PORT, configuration=client(), create_protocol=Client, **options)


def frame(payload):
    """A masked text frame of a WebSocket (RFC 6455)."""
    mask = b"\1\2\3\4"
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return bytes([0x81, 0x80 | 126]) + len(payload).to_bytes(2, "big") + mask + masked


async def main():
    tickets = []
    async with session(session_ticket_handler=tickets.append) as one:
        answer = await one.get("/bytes?n=1000")
        assert answer.heads[0][b":status"] == b"200" and answer.length == 1000
        assert one._quic._retry_count == 1
        print("Retry, handshake")
        many = await asyncio.gather(*(one.get(f"/bytes?n={1000 + number}") for number in range(100)))
        assert [stream.length for stream in many] == [1000 + number for number in range(100)]
        print("100 streams")
        for _ in range(3):
            one.request_key_update()
            assert (await one.get("/bytes?n=5000")).length == 5000
        print("key update")
        sent = os.urandom(200_000)
        for _ in range(3):
            # A new local address, with a new identifier: a migration; then without one: a NAT that has forgotten.
            one.change_connection_id()
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: Forward(one), local_addr=("127.0.0.1", 0))
            one._transport = Redirected(transport)
            answer = await one.post("/echo", sent)
            assert answer.digest.digest() == hashlib.sha256(sent).digest()
        print("migration")
        answer = await one.post("/echo", sent, [(b"x-sum", b"1")])
        assert answer.digest.digest() == hashlib.sha256(sent).digest()
        print("trailers")
        key = base64.b64encode(os.urandom(16))
        number = one.open([(b":method", b"CONNECT"), (b":protocol", b"websocket"), *BASE, (b":path", b"/ws"),
                           (b"sec-websocket-version", b"13"), (b"sec-websocket-key", key)], False)
        message = b"m" * 3000
        one.http.send_data(number, frame(message), end_stream=False)
        one.transmit()
        socket = one.streams[number]
        while message not in socket.last:
            socket.more.clear()
            await asyncio.wait_for(socket.more.wait(), 30)
        assert socket.heads[0][b":status"] == b"200"
        print("WebSocket")
        assert tickets, "no ticket"
        one.close()
        await one.wait_closed()
    configuration = client(session_ticket=tickets[-1])
    async with connect("127.0.0.1", PORT, configuration=configuration, create_protocol=Client) as two:
        assert (await two.get("/bytes?n=10")).length == 10 and two.resumed
        print("resumption")
        length = MEGABYTES << 20
        answer = await two.get(f"/bytes?n={length}")
        assert answer.length == length
        sent = os.urandom(length)
        answer = await two.post("/echo", sent)
        assert answer.digest.digest() == hashlib.sha256(sent).digest()
        print(f"{MEGABYTES} MiB up and down")


class Forward(asyncio.DatagramProtocol):
    """Gives what a new socket receives to the connection."""
    def __init__(self, connection):
        self.connection = connection

    def datagram_received(self, data, _):
        # The address as the connection knows it: mapped to IPv6.
        self.connection.datagram_received(data, self.connection._quic._network_paths[0].addr)


class Redirected:
    """Sends by a new socket, where the old transport was."""
    def __init__(self, transport):
        self.transport = transport

    def sendto(self, data, address=None):
        self.transport.sendto(data, ("127.0.0.1", PORT))

    def close(self):
        self.transport.close()


asyncio.run(main())
