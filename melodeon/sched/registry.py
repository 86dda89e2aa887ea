"""Policies by name. A policy's module is imported when it is first asked for, so that starting stays quick."""

from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
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
        if isinstance(field.default, tuple) and isinstance(options.get(field.name), int | float):
            options[field.name] = (options[field.name],)
    try:
        return cast(Policy, made(**options))
    except TypeError as error:
        given = ", ".join(f"{option}={value!r}" for option, value in options.items())
        raise UsageError(f"policy {name!r} cannot be had with {given}: {error}") from error
