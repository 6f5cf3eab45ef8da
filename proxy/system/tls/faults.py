"""What a TLS server must accept or refuse, by the rules that tlsfuzzer's scripts check, using tlslite-ng.

Usage: faults.py HOST PORT. Prints one line per check: `ok NAME: outcome` or `FAILED NAME: ...`.
The exit code is 1 if a check failed.
An expectation is a set of allowed outcomes: an alert's name, or one of
  hello     a ServerHello          answered  an HTTP response with status 200
  closed    close_notify, or FIN without a session      cut  FIN without close_notify      reset  RST
"""
import os
import socket
import struct
import sys

from tlslite.api import HandshakeSettings, TLSConnection
from tlslite.constants import AlertDescription, ContentType, GroupName, KeyUpdateMessageType, SignatureScheme
from tlslite.errors import TLSAbruptCloseError, TLSClosedConnectionError, TLSRemoteAlert
from tlslite.extensions import (ClientKeyShareExtension, KeyShareEntry, SignatureAlgorithmsExtension,
                                SNIExtension, SupportedGroupsExtension, SupportedVersionsExtension, TLSExtension)
from tlslite.messages import ClientHello, ClientKeyExchange, Finished, Message

ADDRESS = (sys.argv[1], int(sys.argv[2]))
# Longer than the server waits for a handshake, so that its end is observed.
PATIENCE = 15
HANDSHAKE, ALERT, DATA = 22, 21, 23
TLS12, TLS13 = (3, 3), (3, 4)
SUITES = [0x1301, 0x1302, 0xc02b, 0xc02c]
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
CHECKS = []


def check(*expected):
    """Registers a check that returns its outcome."""
    def register(function):
        CHECKS.append((function.__name__, set(expected), function))
        return function
    return register


def cases(expected, table):
    """Registers a check for each entry: bytes that are sent without a session."""
    for name, make in table.items():
        CHECKS.append((name, set(expected), lambda make=make: raw(make())))


# Without a session

def connect():
    return socket.create_connection(ADDRESS, timeout=PATIENCE)


def record(kind, payload, length=None):
    return struct.pack("!BHH", kind, 0x0301, len(payload) if length is None else length) + payload


def raw(sent, fin=False):
    """The kind of the first record received."""
    with connect() as sock:
        try:
            sock.sendall(sent)
            if fin:
                sock.shutdown(socket.SHUT_WR)
            got = b""
            while len(got) < 7:
                more = sock.recv(4096)
                if not more:
                    return "closed" if not got else "half a record"
                got += more
        except ConnectionResetError:
            return "reset"
        except socket.timeout:
            return "silence"
    if got[0] == ALERT:
        return AlertDescription.toStr(got[6])
    return "hello" if got[0] == HANDSHAKE and got[5] == 2 else "record of type %d" % got[0]


def extension(kind, payload=b""):
    return TLSExtension(extType=kind).create(kind, bytearray(payload))


def share(key=None, group=GroupName.x25519):
    entry = KeyShareEntry().create(group, bytearray(os.urandom(32) if key is None else key))
    return ClientKeyShareExtension().create([entry])


def versions(*which):
    return SupportedVersionsExtension().create(list(which))


def extensions(versions_=None, key=None):
    groups = [GroupName.x25519, GroupName.secp256r1]
    schemes = [SignatureScheme.ecdsa_secp256r1_sha256, SignatureScheme.rsa_pss_rsae_sha256]
    return [SNIExtension().create(bytearray(b"localhost")), SupportedGroupsExtension().create(groups),
            SignatureAlgorithmsExtension().create(schemes), versions_ or versions(TLS13, TLS12), key or share()]


def message(version=TLS12, suites=None, list_=None, more=(), compression=(0,)):
    hello = ClientHello()
    hello.create(version, bytearray(os.urandom(32)), bytearray(os.urandom(32)),
                 SUITES if suites is None else suites,
                 extensions=(extensions() if list_ is None else list_) + list(more))
    hello.compression_methods = list(compression)
    return bytes(hello.write())


def hello(**how):
    return record(HANDSHAKE, message(**how))


def relength(body, by):
    """The same message with a wrong length."""
    return body[:1] + (int.from_bytes(body[1:4], "big") + by).to_bytes(3, "big") + body[4:]


def lists_cut():
    """The length of all extensions is one too large."""
    body = message()
    size = sum(len(one.write()) for one in extensions())
    at = len(body) - size - 2
    return record(HANDSHAKE, body[:at] + struct.pack("!H", size + 1) + body[at + 2:])


def without(kind):
    return [one for one in extensions() if one.extType != kind]


def sni(payload):
    return [extension(0, payload)] + without(0)


def named(name, kind=0):
    entry = bytes([kind]) + struct.pack("!H", len(name)) + name
    return struct.pack("!H", len(entry)) + entry


cases(["hello"], {
    "sane": hello,
    "sane_tls12": lambda: hello(list_=extensions(versions(TLS12))),
    "unknown_extension": lambda: hello(more=[extension(0x1234, b"abc"), extension(0xfafa)]),
    "many_unknown_extensions": lambda: hello(more=[extension(0x2000 + n) for n in range(500)]),
    "unknown_suites": lambda: hello(suites=[0xfafa, 0x0a0a] + SUITES),
    "unknown_versions": lambda: hello(list_=extensions(versions((0x7f, 0x1c), (0xfa, 0xfa), TLS13))),
    "heartbeat_extension": lambda: hello(more=[extension(15, b"\x01")]),
    "large_padding": lambda: hello(more=[extension(21, bytes(8000))]),
    "hello_in_single_bytes": lambda: b"".join(record(HANDSHAKE, bytes([byte])) for byte in message()),
    "compression_beside_null": lambda: hello(list_=extensions(versions(TLS12)), compression=(1, 0)),
    "key_share_for_an_unknown_group": lambda: hello(list_=extensions(key=share(b"x" * 32, 0xfafa))),
})
cases(["decode_error", "illegal_parameter"], {
    "hello_with_a_tail": lambda: record(HANDSHAKE, relength(message() + b"\0\0\0", 3)),
    "hello_cut_short": lambda: record(HANDSHAKE, relength(message()[:-5], -5)),
    "hello_empty": lambda: record(HANDSHAKE, b"\x01\0\0\0"),
    "extensions_longer_than_there_are": lists_cut,
    "extension_twice": lambda: hello(more=[versions(TLS13)]),
    "unknown_extension_twice": lambda: hello(more=[extension(0x1234), extension(0x1234)]),
    "versions_empty": lambda: hello(list_=without(43) + [extension(43, b"\0")]),
    "groups_cut": lambda: hello(list_=without(10) + [extension(10, b"\0\x04\0\x1d")]),
    "schemes_of_odd_length": lambda: hello(list_=without(13) + [extension(13, b"\0\x03\x04\x03\x08")]),
    "psk_not_last": lambda: hello(list_=[extension(45, b"\x01\x01"), extension(41, PSK)] + extensions()),
    "key_share_short": lambda: hello(list_=extensions(key=share(b"x" * 31))),
    "key_share_long": lambda: hello(list_=extensions(key=share(b"x" * 33))),
    "key_share_zero": lambda: hello(list_=extensions(key=share(bytes(32)))),
    "no_null_compression": lambda: hello(list_=extensions(versions(TLS12)), compression=(1,)),
    "tls13_with_compression": lambda: hello(list_=extensions(versions(TLS13)), compression=(1, 0)),
    "sni_empty_list": lambda: hello(list_=sni(b"\0\0")),
    "sni_with_nul": lambda: hello(list_=sni(named(b"local\0host"))),
})
PSK = bytes.fromhex("0026" + "0020" + "aa" * 32 + "00000000" + "0021" + "20" + "bb" * 32)
cases(["protocol_version"], {
    "ssl3": lambda: hello(version=(3, 0), list_=without(43)),
    "tls10": lambda: hello(version=(3, 1), list_=without(43)),
    "tls11": lambda: hello(version=(3, 2), list_=without(43)),
    "versions_all_unknown": lambda: hello(list_=extensions(versions((0x7f, 0x1c)))),
    "versions_only_tls11": lambda: hello(list_=extensions(versions((3, 2)))),
})
cases(["handshake_failure", "illegal_parameter", "decode_error", "missing_extension"], {
    "no_suites": lambda: hello(suites=[]),
    "no_common_suite": lambda: hello(suites=[0x0005, 0xc007]),
    "static_rsa_and_cbc_only": lambda: hello(list_=extensions(versions(TLS12)), suites=[0x2f, 0x35, 0x9c, 0xc009]),
    "export_and_null_suites_only": lambda: hello(list_=extensions(versions(TLS12)), suites=[0x01, 0x03, 0x08, 0xc006]),
    "no_schemes": lambda: hello(list_=without(13)),
})
cases(["unexpected_message", "decode_error", "illegal_parameter"], {
    "server_hello_from_client": lambda: record(HANDSHAKE, b"\x02" + message()[1:]),
    "finished_first": lambda: record(HANDSHAKE, b"\x14\0\0\x0c" + bytes(12)),
    "data_first": lambda: record(DATA, GET),
    "ccs_first": lambda: record(20, b"\x01") + record(20, b"\x01") + record(20, b"\x01"),
    "heartbeat_record": lambda: record(24, b"\x01\0\x10abc"),
    "unknown_record_type": lambda: record(99, b"abc"),
    "empty_handshake_record": lambda: record(HANDSHAKE, b""),
    "hello_with_an_empty_record_within": lambda: record(HANDSHAKE, message()[:9]) + record(HANDSHAKE, b"")
    + record(HANDSHAKE, message()[9:]),
    "alert_of_three_bytes": lambda: record(ALERT, b"\x02\x28\0"),
})
# rustls has no alert for a message that is too long, and closes.
cases(["record_overflow", "decode_error", "unexpected_message", "closed", "reset"], {
    "record_too_long": lambda: record(HANDSHAKE, message() + bytes(2 ** 14 + 2000)),
    "record_of_65535": lambda: record(HANDSHAKE, bytes(65535)),
    "message_of_16_megabytes": lambda: record(HANDSHAKE, b"\x01\xff\xff\xff" + bytes(100)) + b"".join(
        record(HANDSHAKE, bytes(2 ** 14)) for _ in range(16)),
})
cases(["closed", "reset", "decode_error", "protocol_version", "unexpected_message", "record_overflow"], {
    "plain_http": lambda: GET,
    "http2_preface": lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "sslv2_hello": lambda: bytes.fromhex("802e0100020015000000100100800700c0030080060040020080040080") + os.urandom(19),
    "noise": lambda: b"\x99" * 500,
    "fatal_alert_first": lambda: record(ALERT, b"\x02\x28"),
    "close_notify_first": lambda: record(ALERT, b"\x01\0"),
    "warnings_without_end": lambda: record(ALERT, b"\x01\x5a") * 100,
    "empty_records_without_end": lambda: record(HANDSHAKE, b"") * 1000,
})


@check("closed", "reset", "decode_error")
def record_cut_by_fin():
    return raw(record(HANDSHAKE, message())[:40], fin=True)


@check("hello", "illegal_parameter")
def early_data_without_psk():
    return raw(hello(more=[extension(42)]))


# Within a session

class Client(TLSConnection):
    """A client that may change a message before it is sent; None drops it."""
    change = staticmethod(lambda message: message)

    def _sendMsg(self, message, *args, **named):
        message = self.change(message)
        if message is not None:
            yield from super()._sendMsg(message, *args, **named)

    def _queue_message(self, message):
        message = self.change(message)
        if message is not None:
            super()._queue_message(message)


def session(version=TLS13, change=None, old=None):
    settings = HandshakeSettings()
    settings.minVersion = settings.maxVersion = version
    client = Client(connect())
    client.closeSocket = True
    if change:
        client.change = change
    client.handshakeClientCert(settings=settings, session=old, serverName="localhost")
    return client


def outcome(act):
    """The outcome, in a word."""
    try:
        got = act()
    except TLSRemoteAlert as alert:
        return AlertDescription.toStr(alert.description)
    except TLSAbruptCloseError:
        return "cut"
    except TLSClosedConnectionError:
        return "closed"
    except (ConnectionResetError, BrokenPipeError):
        return "reset"
    except socket.timeout:
        return "silence"
    return "closed" if not got else "answered" if bytes(got).startswith(b"HTTP/1.1 200") else repr(bytes(got)[:40])


def put(client, kind, payload):
    """One record of any size."""
    for _ in client._recordLayer.sendRecord(Message(kind, bytearray(payload))):
        pass


def within(*records, version=TLS13, get=True):
    """The outcome of records within a session, followed by a request."""
    def act():
        client = session(version)
        for kind, payload in records:
            put(client, kind, payload)
        if get:
            try:
                client.write(GET)
            except OSError:
                pass  # Anything sent before it closed is read below.
        return client.read(min=1)
    return outcome(act)


def spoiled(version, kind, how):
    """The outcome if one message of the handshake is changed."""
    def change(message):
        return how(message) if isinstance(message, kind) else message

    def act():
        client = session(version, change)
        client.write(GET)
        return client.read(min=1)
    return outcome(act)


def flip(message):
    message.verify_data[0] ^= 1
    return message


def shorten(message):
    message.verify_data = message.verify_data[:-1]
    return message


def empty_key(message):
    message.ecdh_Yc = bytearray(0)
    return message


def register_within(expected, table):
    for name, call in table.items():
        CHECKS.append((name, set(expected), call))


KEY_UPDATE = b"\x18\0\0\x01"
register_within(["answered"], {
    "session_tls13": within,
    "session_tls12": lambda: within(version=TLS12),
    "empty_data_record": lambda: within((DATA, b"")),
    "empty_data_record_tls12": lambda: within((DATA, b""), version=TLS12),
    "request_in_single_bytes": lambda: within(*((DATA, bytes([byte])) for byte in GET), get=False),
})
register_within(["decrypt_error"], {
    "finished_wrong_tls13": lambda: spoiled(TLS13, Finished, flip),
    "finished_wrong_tls12": lambda: spoiled(TLS12, Finished, flip),
})
register_within(["decrypt_error", "decode_error"], {
    "finished_short_tls13": lambda: spoiled(TLS13, Finished, shorten),
    "finished_short_tls12": lambda: spoiled(TLS12, Finished, shorten),
})
register_within(["bad_record_mac", "unexpected_message"], {
    "finished_left_out_tls13": lambda: spoiled(TLS13, Finished, lambda message: None),
})
# The client waits for the server's message, so this is the server's timeout.
register_within(["cut", "closed"], {
    "finished_left_out_tls12": lambda: spoiled(TLS12, Finished, lambda message: None),
})
# rustls has no alert for this, and the handshake fails.
register_within(["illegal_parameter", "decode_error", "handshake_failure", "cut", "reset"], {
    "key_exchange_empty_tls12": lambda: spoiled(TLS12, ClientKeyExchange, empty_key),
})
register_within(["unexpected_message", "decode_error", "illegal_parameter"], {
    "key_exchange_left_out_tls12": lambda: spoiled(TLS12, ClientKeyExchange, lambda message: None),
    "key_update_of_unknown_kind": lambda: within((HANDSHAKE, KEY_UPDATE + b"\x05")),
    "key_update_empty": lambda: within((HANDSHAKE, b"\x18\0\0\0")),
    "key_update_and_more_in_a_record": lambda: within((HANDSHAKE, KEY_UPDATE + b"\0" + KEY_UPDATE + b"\0")),
    "hello_again_tls13": lambda: within((HANDSHAKE, message())),
    "unknown_record_type_within": lambda: within((99, b"abc")),
    "ccs_within": lambda: within((20, b"\x01")),
    "finished_again": lambda: within((HANDSHAKE, b"\x14\0\0\x20" + bytes(32))),
})
# Forbidden by RFC 8446 section 5.1, which does not define the reaction.
register_within(["answered", "unexpected_message", "decode_error"], {
    "empty_handshake_record_within": lambda: within((HANDSHAKE, b"")),
})
register_within(["record_overflow"], {
    "record_too_long_tls13": lambda: within((DATA, bytes(2 ** 14 + 1)), get=False),
    "record_too_long_tls12": lambda: within((DATA, bytes(2 ** 14 + 1)), version=TLS12, get=False),
})
register_within(["no_renegotiation"], {
    "renegotiation_tls12": lambda: within((HANDSHAKE, message(list_=without(43))), version=TLS12, get=False),
})
register_within(["closed", "cut", "reset"], {
    # rustls has no alert for a message interrupted by other records.
    "handshake_cut_by_data": lambda: within((HANDSHAKE, KEY_UPDATE[:2])),
    "fatal_alert_within": lambda: within((ALERT, b"\x02\x50"), get=False),
    "close_notify_within": lambda: within((ALERT, b"\x01\0"), get=False),
})


@check("answered")
def key_update_requested():
    def act():
        client = session()
        for _ in client.send_keyupdate_request(KeyUpdateMessageType.update_requested):
            pass
        client.write(GET)
        return client.read(min=1)
    return outcome(act)


@check("answered", "unexpected_message", "closed", "cut", "reset")
def key_updates_without_end():
    def act():
        client = session()
        for _ in range(2000):
            for _ in client.send_keyupdate_request(KeyUpdateMessageType.update_requested):
                pass
        client.write(GET)
        return client.read(min=1)
    return outcome(act)


@check("bad_record_mac")
def record_spoiled(version=TLS13):
    def act():
        client = session(version)
        wire = client._recordLayer._recordSocket.sock

        class Spoil:
            def send(self, data):
                wire.send(bytes(data[:-1]) + bytes([data[-1] ^ 1]))
                return len(data)

        client._recordLayer._recordSocket.sock = Spoil()
        put(client, DATA, GET)
        client._recordLayer._recordSocket.sock = wire
        return client.read(min=1)
    return outcome(act)


@check("bad_record_mac")
def record_spoiled_tls12():
    return record_spoiled(TLS12)


@check("bad_record_mac", "decode_error")
def record_shorter_than_its_tag():
    def act():
        client = session()
        client.sock.sendall(b"\x17\x03\x03\0\x05abcde")
        return client.read(min=1)
    return outcome(act)


@check("tickets without early data, resumed")
def resumption_without_early_data():
    first = session()
    first.write(GET)
    first.read(min=1)
    early = [one for ticket in first.tickets for one in ticket.extensions if one.extType == 42]
    second = session(old=first.session)
    second.write(GET)
    second.read(min=1)
    said = "tickets with" if early else "tickets without" if first.tickets else "no tickets, without"
    return "%s early data, %s" % (said, "resumed" if second.resumed else "not resumed")


def main():
    failed = 0
    for name, expected, function in CHECKS:
        try:
            came = function()
        except Exception as error:  # The check itself is broken: a failure of this check only.
            came = "%s: %s" % (type(error).__name__, error)
        good = came in expected
        failed += not good
        words = came if good else "%s, expected %s" % (came, " or ".join(sorted(expected)))
        print("%s %s: %s" % ("ok" if good else "FAILED", name, words), flush=True)
    print("%d checks, %d failed" % (len(CHECKS), failed))
    sys.exit(1 if failed else 0)


main()
