"""Where jobs may run: folders inside the roots that the operator named, links followed first.

A folder outside is refused in the same words whether it exists or not, so that nobody can feel their way around a disk.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from melodeon.core.errors import UsageError
from melodeon.core.spec import Spec


class Roots:
    """The folders in which jobs may run; a path that is not absolute is inside the first."""

    def __init__(self, roots: Sequence[Path]) -> None:
        if not roots:
            raise UsageError("no folder is named in which jobs may run: give --root")
        found = []
        for root in roots:
            try:
                found.append(root.resolve(strict=True))
            except OSError as error:
                raise UsageError(f"--root {str(root)!r} cannot be used ({error.strerror}): name a folder") from error
        self._roots = tuple(dict.fromkeys(found))

    @classmethod
    def default(cls) -> "Roots":
        """The folder where the service was started, and its user's home."""
        return cls([path for path in (Path.cwd(), Path.home()) if path.is_dir()])

    def checked(self, spec: Spec) -> Spec:
        """The job with its folder made absolute; refused when it or its script is not where it may be."""
        folder = self._resolved("workdir", spec.workdir, self._roots[0] / spec.workdir)
        if not any(folder.is_relative_to(root) for root in self._roots):
            names = ", ".join(str(root) for root in self._roots)
            raise UsageError(f"workdir: {spec.workdir!r} is outside of the folders where jobs may run: {names}")
        if not _is_dir(folder):
            raise UsageError(f"workdir: {spec.workdir!r} is no folder: name the one that the script is in")
        if spec.run[0] != "-m":
            script = self._resolved("run", spec.run[0], folder / spec.run[0])
            if not script.is_relative_to(folder):
                raise UsageError(f"run: {spec.run[0]!r} is outside of the job's folder {str(folder)!r}: move it inside")
            if not _is_file(script):
                raise UsageError(f"run: {spec.run[0]!r} is no file in {str(folder)!r}: name a script there")
        return replace(spec, workdir=str(folder))

    @staticmethod
    def _resolved(field: str, text: str, path: Path) -> Path:
        try:
            return path.resolve()
        except (OSError, ValueError, RuntimeError):
            raise UsageError(f"{field}: {text!r} is no path") from None


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
