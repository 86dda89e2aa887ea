"""Policies by name. A policy's module is imported when it is first asked for, so that starting stays quick."""

from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from math import isfinite
from typing import cast

from melodeon.core.errors import UsageError
from melodeon.sched.policy import Policy

POLICIES: dict[str, str] = {
    "backfill": "melodeon.sched.backfill:Backfill",
    "chronus": "melodeon.sched.chronus:Chronus",
    "easyscale-heter": "melodeon.sched.easyscale:EasyScaleHeter",
    "easyscale-homo": "melodeon.sched.easyscale:EasyScaleHomo",
    "edf": "melodeon.sched.edf:Edf",
    "edf-admission": "melodeon.sched.edf_admission:EdfAdmission",
    "edf-elastic": "melodeon.sched.edf_elastic:EdfElastic",
    "elastic-backfill": "melodeon.sched.elastic_backfill:ElasticBackfill",
    "elastic-fifo": "melodeon.sched.elastic_fifo:ElasticFifo",
    "elastic-tiresias": "melodeon.sched.elastic_tiresias:ElasticTiresias",
    "elasticflow": "melodeon.sched.elasticflow:ElasticFlow",
    "fifo": "melodeon.sched.fifo:Fifo",
    "gandiva": "melodeon.sched.gandiva:Gandiva",
    "gavel": "melodeon.sched.gavel:Gavel",
    "gavel-hetero": "melodeon.sched.gavel_hetero:GavelHetero",
    "optimus": "melodeon.sched.optimus:Optimus",
    "pollux": "melodeon.sched.pollux:Pollux",
    "priority": "melodeon.sched.priority:Priority",
    "themis": "melodeon.sched.themis:Themis",
    "tiresias": "melodeon.sched.tiresias:Tiresias",
    "wfs": "melodeon.sched.wfs:Wfs",
    "yarn-cs": "melodeon.sched.yarn_cs:YarnCs",
}
"""name -> "module:class"; the class is a frozen dataclass whose fields are the policy's options."""


def make_policy(name: str, **options: object) -> Policy:
    """The policy of that name, with its options."""
    if name not in POLICIES:
        near = get_close_matches(name, POLICIES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"policy {name!r} is not known: {hint}the policies are {', '.join(sorted(POLICIES))}")
    module, _, attribute = POLICIES[name].partition(":")
    made = getattr(import_module(module), attribute)
    known = [field.name for field in fields(made)]
    for option in options:
        if option not in known:
            takes = f"choose of {', '.join(known)}" if known else "it has none"
            raise UsageError(f"policy {name!r} has no option {option!r}: {takes}")
    for field in fields(made):
        if field.name not in options:
            continue
        value = options[field.name]
        if isinstance(field.default, tuple):
            options[field.name] = (value,) if isinstance(value, int | float) else value
        elif not _suits(value, field.default):
            raise UsageError(f"policy {name!r} cannot be had with {field.name}={value!r}: {_takes(field.default)}")
    return cast(Policy, made(**options))


def _suits(value: object, default: object) -> bool:
    """Whether an option's value is of its default's kind; None stands for a number that may be left out."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, int):
        return isinstance(value, int)
    if isinstance(value, int | float):
        return isfinite(value)
    return default is None and value is None


def _takes(default: object) -> str:
    match default:
        case bool():
            return "it takes yes or no"
        case int():
            return f"it takes a whole number, such as {default}"
        case float():
            return f"it takes a number, such as {default:g}"
        case _:
            return "it takes a number or none"
