"""Colours can be told from what they stand on, in light and in dark (WCAG's contrast of 4.5)."""

import re

import pytest

from melodeon.control.web.assets import FOLDER
from melodeon.control.web.words import NUM_COLOURS
from melodeon.core.service import Phase

CSS = (FOLDER / "melodeon.css").read_text()
ON = [
    *((name, ground) for name in ("text", "faint", "link", "good", "bad", "warn") for ground in ("card", "page")),
    *((name, f"{name}-bg") for name in ("good", "bad", "warn", "busy")),
    ("text", "quiet-bg"),
    ("text", "button"),
    *(("on", f"c{number}") for number in range(NUM_COLOURS)),
]


def colours(scheme: str) -> dict[str, str]:
    light, dark = CSS.split("@media (prefers-color-scheme: dark)", 1)
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})[;\s]", light))
    return found | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})[;\s]", dark)) if scheme == "dark" else found


def brightness(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("ink", "ground"), ON)
def test_contrast(scheme: str, ink: str, ground: str) -> None:
    known = colours(scheme)
    low, high = sorted((brightness(known[ink]), brightness(known[ground])))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_every_job_has_a_colour() -> None:
    for number in range(NUM_COLOURS):
        assert re.search(rf"\.c{number} {{ --c: var\(--c{number}\); }}", CSS)
    assert all(re.search(rf"\.phase\.{phase}\b", CSS) for phase in Phase if phase not in ("waiting", "cancelled"))
