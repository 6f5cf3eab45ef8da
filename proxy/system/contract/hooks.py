"""Keeps the requests that schemathesis generates for the control API short and on this host.

Valid targets are replaced by those of CONTRACT_TARGETS: nothing else is connected, and no name is looked up. Deploys
wait only for a moment. Invalid values stay as they are.
"""

import os
import re

import schemathesis

TARGETS = os.environ["CONTRACT_TARGETS"].split()
TARGET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]+(:[0-9]+)?", re.ASCII)
DURATION = re.compile(r"[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|ms|s|m|h))+)", re.ASCII)
MOMENT = "20ms"


def is_duration(value):
    if isinstance(value, str):
        return DURATION.fullmatch(value) is not None
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def keep_targets_here(targets):
    if not isinstance(targets, list):
        return targets
    here = lambda number, target: TARGETS[number % len(TARGETS)]
    is_target = lambda target: isinstance(target, str) and TARGET.fullmatch(target)
    return [here(number, target) if is_target(target) else target for number, target in enumerate(targets)]


def whole(value):
    """JSON Schema accepts 1.0 as an integer; the API requires 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return value


@schemathesis.hook
def before_call(context, case, kwargs):
    if not isinstance(case.body, (dict, list)):
        return
    body = case.body = whole(case.body)
    if not case.path.endswith("/deploy") or not isinstance(body, dict):
        return
    for key in ("targets", "read_targets"):
        if key in body:
            body[key] = keep_targets_here(body[key])
    options = body.get("deployment_options", {})
    if isinstance(options, dict) and is_duration(options.get("deploy_timeout", 0)):
        body["deployment_options"] = {**options, "deploy_timeout": MOMENT}
    target = body.get("target_options")
    check = target.get("health_check_config") if isinstance(target, dict) else None
    if isinstance(check, dict):
        if isinstance(check.get("port"), int) and 0 < check["port"] < 65536:
            check["port"] = 0
        # Half of them get well.
        if isinstance(check.get("path"), str) and len(check["path"]) % 2 == 0:
            check["path"] = "/up"
