"""Prints what redbot finds wrong or doubtful at a URL: a line with the status, the level and the note.

    python redbot_notes.py URL
"""
import sys
from configparser import ConfigParser

import thor
from httplint.note import levels
from redbot.resource import HttpResource


def notes(url):
    parser = ConfigParser()
    parser.read_dict({"redbot": {"enable_local_access": "true"}})
    resource = HttpResource(parser["redbot"])
    resource.set_request(url)
    resource.on("check_done", thor.stop)
    resource.check()
    thor.run()
    yield from ((resource.response, note) for note in resource.response.notes)
    for check in resource.subreqs.values():
        yield from ((check.response, note) for note in check.response.notes)


def is_of_order(response, note):
    """Date counts with Age, which redbot has not read when Age is below Date."""
    return type(note).__name__ == "DATE_INCORRECT" and response.headers.parsed.get("age")


for response, note in notes(sys.argv[1]):
    if is_of_order(response, note):
        continue
    if note.level in (levels.BAD, levels.WARN):
        print(response.status_code, note.level.name, note.summary)
