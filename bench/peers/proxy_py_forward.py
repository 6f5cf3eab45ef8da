"""Forwards everything to BENCH_ORIGIN: the smallest reverse proxy plugin of proxy.py.

proxy.py opens a connection to the origin for each request, and has no option to keep them. It runs with --threaded,
because by default 2.4.10 does not respond to the second request on a keep-alive connection with a plugin.
"""
import os

from proxy.http import Url
from proxy.http.server import ReverseProxyBasePlugin

ORIGIN = os.environ["BENCH_ORIGIN"].encode()


class Forward(ReverseProxyBasePlugin):
    def routes(self):
        return [r"/.*"]

    def handle_route(self, request, pattern):
        return Url.from_bytes(b"http://" + ORIGIN + request.path)
