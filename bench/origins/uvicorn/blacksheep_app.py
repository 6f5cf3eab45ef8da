"""A BlackSheep origin: uvicorn --app-dir FOLDER blacksheep_app:app

/            a line of text
/delay?ms=   responds after ms milliseconds
/up          for health checks
"""
import asyncio

from blacksheep import Application, get
from blacksheep.server.responses import text

DELAY_MS_MAX = 60_000
app = Application()


@get("/")
async def hello():
    return text("hello from blacksheep\n")


@get("/up")
async def up():
    return text("up\n")


@get("/delay")
async def delay(ms: int = 0):
    await asyncio.sleep(min(max(ms, 0), DELAY_MS_MAX) / 1000)
    return text("waited\n")
