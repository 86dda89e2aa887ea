"""docs/events.md lists every kind of event that the master writes, and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_lists_what_the_master_writes() -> None:
    page = (ROOT / "docs/events.md").read_text().split("## From the master")[1]
    listed = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    code = "".join(path.read_text() for path in (ROOT / "melodeon/coord").glob("*.py"))
    written = set(re.findall(r"""(?:turn\.record\(|Record\(kind=)\s*"(\w+)\"""", code))
    assert listed == written
