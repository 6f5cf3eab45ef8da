"""A Starlette origin: uvicorn --app-dir FOLDER starlette_app:app

/            a line of text
/delay?ms=   answers after so many milliseconds
/up          for health checks
"""
import asyncio

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

DELAY_MS_MAX = 60_000


async def hello(request):
    return PlainTextResponse("hello from starlette\n")


async def delay(request):
    ms = request.query_params.get("ms", "0")
    await asyncio.sleep(min(int(ms), DELAY_MS_MAX) / 1000 if ms.isdecimal() else 0)
    return PlainTextResponse("waited\n")


app = Starlette(routes=[Route("/", hello), Route("/up", hello), Route("/delay", delay)])
