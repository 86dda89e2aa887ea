"""How `melodeon` speaks when it is asked for help, and when it is called wrongly.

Help is plain text, since loading what draws boxes would take longer than the rest: commands stand in groups, and so do
the options of a command that has many. A wrong call is one sentence on stderr like every other error, a file that
cannot be used too, and Ctrl-C ends a command with the exit code of what was stopped on request.
"""

import errno
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from melodeon.cli.output import mute
from melodeon.core.errors import Cancelled, MelodeonError, UsageError

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

WrongCall: type[Exception] = typer.BadParameter.__mro__[1]
"""Every mistake in how a command is called; typer has no public name for it."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system says where there is no room; it then often names no file."""

MANY = 10
"""A command with more options than these has them in groups."""

HEADINGS = {
    "What defines the bits": ("--determinism", "--threads", "--order"),
    "What is recorded": ("--receipt-every", "--record-ops", "--record-states"),
    "Workers that come and go": (
        "--static",
        "--restarts",
        "--agents",
        "--listen",
        "--store",
        "--straggler",
        "--patience",
    ),
    "Batches that grow": ("--hybrid", "--curves", "--batch-history"),
    "What is simulated": ("--policy", "--cluster", "--slot", "--no-pauses", "--failures"),
    "Traces": ("--throughputs", "--format", "--generate", "--seed", "--first", "--skip-bad"),
    "Where it goes": ("--runs-root", "--name", "--keep", "--save", "--quiet", "--json", "--output"),
}
"""Options by heading, the same for every command that has none of its own; those that stand nowhere are general."""

OWN_HEADINGS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "submit": {
        "By when, and how much": ("--deadline", "--on-miss", "--priority", "--workers", "--curve"),
        "What defines the bits": ("--virtual-workers", "--determinism", "--threads", "--order"),
        "Where and how it runs": ("--devices", "--checkpoint", "--env", "--workdir", "--memory", "--restarts"),
    },
    "serve": {
        "Devices and policy": ("--devices", "--cluster", "--topology", "--policy", "--margin"),
        "Who may do what": ("--quota", "--quota-day", "--root", "--allow-host", "--run-as"),
    },
}
"""Commands in which options mean something else than elsewhere."""

TYPES = ((r"<(list\[)?(int|float)( range)?\]?>", "N"), (r"<(list\[)?\w+\]?>", "TEXT"))
"""What stands for an option's value where the option says nothing better."""


HARD_SPACE = "\N{NO-BREAK SPACE}"


class Command(TyperCommand):
    """One command; its help names arguments plainly and puts many options in groups."""

    def collect_usage_pieces(self, ctx: "Context") -> list[str]:
        """The words of the usage line."""
        return [re.sub("[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Arguments, then options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        params = self.get_params(ctx)
        many = len(params) > MANY
        for param in params:
            record = param.get_help_record(ctx)
            if record is None:
                continue
            name, text = record
            if param.param_type_name == "argument":
                sections["Arguments"].append((name.split(" <")[0], text.removesuffix("  [required]")))
            else:
                heading = _heading(param.opts, str(ctx.info_name)) if many else "Options"
                sections.setdefault(heading, []).append((_with_type(name), _without_range(text)))
        _write(formatter, sections)


class Commands(TyperGroup):
    """The whole command line."""

    groups: Mapping[str, Mapping[str, str]] = {}
    """Heading -> commands in the order that help lists them, each with its line there."""

    def list_commands(self, ctx: "Context") -> list[str]:  # noqa: ARG002
        """Their names."""
        return list(self.commands)

    def format_commands(self, ctx: "Context", formatter: "HelpFormatter") -> None:  # noqa: ARG002
        """A line a command, under headings."""
        _write(formatter, {heading: list(lines.items()) for heading, lines in self.groups.items()})

    def invoke(self, ctx: "Context") -> Any:
        """Run a command; Ctrl-C that it leaves to us is a request like any other."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Cancelled("stopped on request") from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and end the process; whatever a person can cause is raised as one of our errors."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
            print(end="", flush=True)  # here, since Python's own at the end knows no sentence
        except WrongCall as problem:
            raise _refusal(problem, sys.argv[1:] if args is None else args) from None
        except OSError as error:
            if error.errno in FULL:
                raise _without_room(error) from error
            if error.errno == errno.EPIPE:  # whoever read it has left
                mute(sys.stdout)
                sys.exit(1)
            if error.filename is None:
                raise
            raise MelodeonError(
                f"{error.filename} cannot be used ({error.strerror}): check the path, and your rights"
            ) from error
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


def _without_room(error: OSError) -> MelodeonError:
    """What is said where nothing more can be written, which may be what was to be printed."""
    try:
        print(end="", flush=True)
    except OSError:
        mute(sys.stdout)
    return MelodeonError(f"nothing more can be written ({error.strerror}): make room, and try again")


def _refusal(problem: Exception, words: Sequence[str]) -> BaseException:
    text = str(getattr(problem, "format_message", problem.__str__)())
    if "\n" in text:  # nothing was asked for: this is the help
        print(text, file=sys.stderr)
        return SystemExit(UsageError.exit_code)
    text = (text[0].lower() + text[1:]).rstrip(".").replace(". Did", ": did").replace("(Possible", "(possible")
    names = getattr(getattr(problem, "param", None), "opts", ())
    given = next((f"{name} {value}" for name, value in _values(words) if name in names), None)
    if given is not None and text.startswith("invalid value for "):
        rule = text.partition(": ")[2].partition(", ")[0].replace("Input should", "it must")
        text = f"{given} cannot be: {rule[0].lower()}{rule[1:]}"
    context = getattr(problem, "ctx", None)
    return UsageError(f"{text} (see `{context.command_path if context else 'melodeon'} --help`)")


def _values(words: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Every option with what may be its value: the next word, or what follows `=`."""
    for word, following in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        yield (name, value) if equals else (word, following)


def _heading(names: Iterable[str], command: str) -> str:
    headings = OWN_HEADINGS.get(command, HEADINGS)
    return next((title for title, listed in headings.items() if set(names) & set(listed)), "Options")


def _with_type(name: str) -> str:
    for pattern, word in TYPES:
        name = re.sub(pattern, word, name)
    return name


def _without_range(text: str) -> str:
    """A number that is too small or too large is refused with the rule; in help it would be in the way."""
    limits = r"([\d.]+<=)?x([<>]=[\d.]+)?"
    return re.sub(rf"; {limits}\]$", "]", re.sub(rf"  \[{limits}\]$", "", text))


def _unbroken(text: str) -> str:
    """Lines break before what stands in brackets at the end, never in it."""
    head, space, tail = text.rpartition("  [")
    return head + space + tail.replace(" ", HARD_SPACE) if space else text


def _write(formatter: "HelpFormatter", sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Sections whose second columns stand below each other."""
    wide = max(len(name) for rows in sections.values() for name, _ in rows)
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl([(name.ljust(wide), _unbroken(text)) for name, text in rows])
    formatter.buffer[:] = [part.replace(HARD_SPACE, " ") for part in formatter.buffer]
