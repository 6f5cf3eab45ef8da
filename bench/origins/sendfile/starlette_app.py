"""A Starlette application that names files: uvicorn --app-dir FOLDER starlette_app:app

/NAME       a file of the folder STORAGE
/outside    a file that is not in the folder
"""
import os

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

STORAGE = os.environ["STORAGE"]


def file(path):
    return Response(headers={"X-Sendfile": path, "Content-Type": "application/x-stored"})


async def stored(request):
    return file(os.path.join(STORAGE, request.path_params["name"]))


async def outside(_request):
    return file("/etc/passwd")


app = Starlette(routes=[Route("/outside", outside), Route("/{name}", stored)])
