"""A Starlette origin: uvicorn --app-dir FOLDER starlette_app:app

/            a line of text
/bytes?n=    n bytes, always the same
/delay?ms=   responds after ms milliseconds
/upload      the SHA-256 of the request body, in hex
/stream?n=   n lines, each sent separately
/gated?id=   server-sent events: one at once, the last one after a request for /release?id=
/release?id= lets /gated continue
/up, /health for health checks
"""
import asyncio
import hashlib

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

DELAY_MS_MAX = 60_000
BYTES_MAX = 1 << 34
LINES_MAX = 1 << 20
GATE_WAIT_S = 30
BLOCK = 65_536
# Not a power of two, so that a lost or repeated block shows.
PERIOD = 65_521
PATTERN = bytes(((i % PERIOD * 167) >> 3 ^ i % PERIOD) & 0xFF for i in range(PERIOD + BLOCK))
gates = {}


def number(request, name, most):
    value = request.query_params.get(name, "")
    return min(int(value), most) if value.isdecimal() else 0


async def hello(request):
    return PlainTextResponse("hello from starlette\n")


async def delay(request):
    await asyncio.sleep(number(request, "ms", DELAY_MS_MAX) / 1000)
    return PlainTextResponse("waited\n")


async def content(request):
    count = number(request, "n", BYTES_MAX)

    async def blocks():
        for at in range(0, count, BLOCK):
            start = at % PERIOD
            yield PATTERN[start : start + min(BLOCK, count - at)]

    return StreamingResponse(
        blocks(), media_type="application/octet-stream", headers={"Content-Length": str(count)}
    )


async def upload(request):
    digest = hashlib.sha256()
    try:
        async for piece in request.stream():
            digest.update(piece)
    except ClientDisconnect:
        # The client is gone: no response.
        return PlainTextResponse("gone\n", status_code=400)
    return PlainTextResponse(digest.hexdigest() + "\n")


async def stream(request):
    count = number(request, "n", LINES_MAX)

    async def lines():
        for i in range(count):
            yield f"line {i}\n"

    return StreamingResponse(lines(), media_type="text/plain")


async def gated(request):
    """Who gets the first event before the last was not kept waiting."""
    name = request.query_params.get("id")
    gate = gates[name] = asyncio.Event()

    async def events():
        yield "data: first\n\n"
        try:
            await asyncio.wait_for(gate.wait(), GATE_WAIT_S)
            yield "data: last\n\n"
        except asyncio.TimeoutError:
            pass
        finally:
            gates.pop(name, None)

    return StreamingResponse(events(), media_type="text/event-stream")


async def release(request):
    gate = gates.get(request.query_params.get("id"))
    if gate is None:
        return PlainTextResponse("no such gate\n", status_code=404)
    gate.set()
    return PlainTextResponse("released\n")


app = Starlette(
    routes=[
        Route("/", hello),
        Route("/up", hello),
        Route("/health", hello),
        Route("/bytes", content),
        Route("/delay", delay),
        Route("/upload", upload, methods=["POST"]),
        Route("/stream", stream),
        Route("/gated", gated),
        Route("/release", release),
    ]
)
