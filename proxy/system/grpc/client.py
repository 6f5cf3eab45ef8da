"""A Python gRPC client, against grpc-go's interoperability server behind sluice: ADDRESS.

Messages are encoded manually, so that no generated code is needed; see grpc/testing/messages.proto.
"""

import queue
import sys

import grpc

SERVICE = "/grpc.testing.TestService/"


def number(value):
    """A varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def field(index, content):
    """A field of bytes or of another message."""
    return number(index << 3 | 2) + number(len(content)) + content


def simple_request(size, status=None):
    """Requests a payload of this many bytes, or a status."""
    asked = number(2 << 3) + number(size)
    return asked + (field(7, number(1 << 3) + number(status[0]) + field(2, status[1])) if status else b"")


def streaming_request(size):
    """Requests one message with a payload of this many bytes."""
    return field(2, number(1 << 3) + number(size))


def unary(channel):
    call = channel.unary_unary(SERVICE + "UnaryCall")
    assert channel.unary_unary(SERVICE + "EmptyCall")(b"", timeout=10) == b""
    for size in [1, 1000, 300_000]:
        assert size <= len(call(simple_request(size), timeout=10)) <= size + 20
    try:
        call(simple_request(1, (5, b"not there")), timeout=10)
        raise AssertionError("no error")
    except grpc.RpcError as error:
        assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "not there"), error
    try:
        channel.unary_unary(SERVICE + "NoSuchCall")(b"", timeout=10)
        raise AssertionError("no error")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error


def interleaved(channel):
    """Each message is sent after the response to the previous one."""
    said = queue.Queue()
    answers = channel.stream_stream(SERVICE + "FullDuplexCall")(iter(said.get, None), timeout=20)
    for size in range(1, 50):
        said.put(streaming_request(size * 100))
        assert size * 100 <= len(next(answers)) <= size * 100 + 20
    said.put(None)
    assert list(answers) == []
    assert answers.code() == grpc.StatusCode.OK


def at_once(channel):
    call = channel.unary_unary(SERVICE + "UnaryCall")
    calls = [call.future(simple_request(size), timeout=20) for size in range(1, 200)]
    assert all(size <= len(call.result()) for size, call in enumerate(calls, 1))


def deadline(channel):
    """An empty call gets no messages."""
    said = queue.Queue()
    answers = channel.stream_stream(SERVICE + "FullDuplexCall")(iter(said.get, None), timeout=0.2)
    try:
        next(answers)
        raise AssertionError("no error")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
    said.put(None)


with grpc.insecure_channel(sys.argv[1]) as channel:
    CHECKS = [unary, interleaved, at_once, deadline, unary]
    for check in CHECKS:
        check(channel)
    print(f"{len(CHECKS)} checks")
