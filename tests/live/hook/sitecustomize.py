"""Puts a bug into one module as it is imported, in every process that a test starts; see tests/live/bugs.py.

Python imports this by itself where the folder is on PYTHONPATH. The variable holds a bug as JSON.
"""

import importlib.machinery
import json
import os
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

_BUG = json.loads(os.environ.get("MELODEON_SEEDED_BUG") or "{}")


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        assert source.count(_BUG["old"]) == 1, f"{fullname} does not have {_BUG['old']!r} once: mend the bug's text"
        return self.source_to_code(source.replace(_BUG["old"], _BUG["new"]).encode(), self.path)


class _Finder:
    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _BUG["module"]:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None, f"there is no module {name}"
        assert spec.origin is not None
        spec.loader = _Loader(name, spec.origin)
        return spec


if _BUG:
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
