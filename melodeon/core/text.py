"""Words for people: amounts, how a process ended; a job's words made harmless, to move no cursor and break no page."""

import re
import signal

ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(\x07|\x1b\\)?|[ -/]*[0-~])")
"""Sequences that colour a terminal, move its cursor, set its title or feed it data."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def counted(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def ending_of(code: int) -> str:
    """`died of SIGSEGV`: how a process ended, by its code as subprocess gives it, negative for a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":
        return "was killed (SIGKILL), perhaps because the machine ran out of memory"
    return f"died of {name}"


def harmless(line: str) -> str:
    """A line of output without anything that a terminal would obey: its sequences are left out, tabs are spaces."""
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else REPLACEMENT for char in ESCAPES.sub("", line).expandtabs())


def plain(text: object) -> str:
    """Text for one line of a screen: line ends and tabs become spaces, all that is not printable is shown as such."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char in "\t\n\r" else REPLACEMENT for char in text)
