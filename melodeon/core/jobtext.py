"""A job's file as text, in YAML or JSON: its fields, or one sentence about what is wrong and in which line.

Plain YAML only. No field is named twice, since one of them would be forgotten without a word; and nothing is repeated
by name (`*x`), since a few lines of that can stand for more than memory holds.
"""

from collections.abc import Hashable
from datetime import date
from typing import Any

import yaml

from melodeon.core.errors import UsageError

FIX = "write lines such as `name: cnn`"


def read_fields(text: str, what: str) -> dict[Any, Any]:
    """The fields; `what` names the text in errors."""
    try:
        raw = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        why = getattr(error, "problem", None) or "it cannot be read"
        raise UsageError(f"{what} is no YAML{line} ({why}): {FIX}") from error
    if not isinstance(raw, dict):
        raise UsageError(f"{what} is no table of fields: {FIX}")
    # YAML knows days; the reader knows moments.
    return {name: value.isoformat() if isinstance(value, date) else value for name, value in raw.items()}


class _Loader(yaml.SafeLoader):
    """Refuses what a job's file has no use for."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next value, unless it is an alias."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="a name with * repeats a value", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A table, unless a field is in it twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} is there twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)
