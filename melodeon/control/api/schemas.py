"""What the OpenAPI description says beyond the values of `core.service`: bodies that are sent, and errors.

Bodies are read by the same readers that the command line uses, so that a mistake is told in the same words everywhere;
what stands here describes them.
"""

from dataclasses import dataclass
from typing import Any

from melodeon.control.desk import EDITABLE
from melodeon.core.determinism import LEVELS
from melodeon.sched.registry import POLICIES

Schema = dict[str, Any]
PREFIX = "/api/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why something was refused."""

    error: str
    """One sentence: the value, the rule, the fix."""
    code: int
    """The exit code that the command line ends with."""
    field: str | None = None
    """The field or parameter that is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInfo:
    """The policy that decides, and those that could."""

    policy: str
    policies: tuple[str, ...] = tuple(sorted(POLICIES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """That the service is there."""

    status: str
    version: str


def _whole(text: str, *, least: int = 1) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": (1 << 53) - 1, "description": text}


def _text(text: str, **more: object) -> Schema:
    return {"type": "string", "minLength": 1, "description": text, **more}


JOB_FIELDS: dict[str, Schema] = {
    "name": _text("What to call it; the service adds a number.", pattern="^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"),
    "run": {
        "description": "A script and its arguments, as one text or as a list of words.",
        "anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
    },
    "virtual_workers": _whole("Defines the result; left out: what the script says."),
    "workers": {
        "description": "How few and how many workers it may have; a single number fixes it.",
        "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[1-9][0-9]{0,8}(-[0-9]{0,9})?$"}],
    },
    "deadline": _text("A time from submission such as 6h, or a date; left out: best effort."),
    "on_miss": {"enum": ["reject", "soft"], "description": "What to do where the deadline cannot be kept."},
    "steps": _whole("When it ends: after so many steps."),
    "epochs": _whole("When it ends: after so many epochs; give one of the two."),
    "until": _text("Ends earlier, such as `loss < 0.1`."),
    "priority": {"type": "number", "exclusiveMinimum": 0, "description": "Its weight."},
    "order": {"enum": ["tree", "ddp"], "description": "The order of summation over virtual workers."},
    "determinism": {"enum": list(LEVELS), "description": "The level that the kernels are pinned to."},
    "threads": _whole("Threads of each worker."),
    "devices": {"type": "array", "items": {"type": "string"}, "description": "Device types it may run on; empty: any."},
    "checkpoint": _whole("Steps between checkpoints."),
    "env": {
        "type": "object",
        "additionalProperties": {"type": ["string", "number"]},
        "description": "Variables of its workers.",
    },
    "workdir": _text("The folder that the script is in."),
    "curve": {
        "type": "object",
        "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
        "description": "Steps a second by number of workers, where they are known.",
    },
    "memory": {"type": ["integer", "string"], "description": "Address space of each process, such as 4G."},
    "restarts": _whole("Lost workers that are replaced.", least=0),
}
"""The fields of a job's file, as `core.spec` reads them."""


def body(schema: Schema, *, required: bool = True) -> Schema:
    """How a route says what it takes."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def _table(properties: dict[str, Schema], *required: str) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


JOB = _table(JOB_FIELDS, "name", "run")
CHANGES = _table({name: {"anyOf": [JOB_FIELDS[name], {"type": "null"}]} for name in EDITABLE})
"""null takes a field back."""
SCALE = _table(
    {
        "workers": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": 1_000_000,
            "description": "null: back to the policy.",
        }
    },
    "workers",
)
NODE = _table({"up": {"type": "boolean"}, "drained": {"type": "boolean"}})
POLICY = _table({"policy": {"type": "string", "enum": sorted(POLICIES)}}, "policy")
WHAT_IF = _table({"policy": {"type": ["string", "null"]}, "job": {"anyOf": [JOB, {"type": "null"}]}})

SENTENCES = {
    401: "No token, or a wrong one",
    403: "Not allowed",
    404: "Not there",
    413: "Too large",
    421: "Not this host",
    422: "A mistake in what was sent",
    503: "Not now",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, besides those of all."""
    return {status: {"model": Problem, "description": SENTENCES[status]} for status in (401, 421, *statuses)}
