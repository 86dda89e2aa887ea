"""What the pages say is true: snippets run, links lead somewhere, commands and names exist."""

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import melodeon
from melodeon.cli.commands import COMMANDS
from melodeon.core.launch import Launch

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/*.md")])

PRELUDE = """
import torch, melodeon
from torch.nn import functional
from torch.utils.data import TensorDataset
dataset = TensorDataset(torch.arange(37 * 6.0).view(37, 6).cos(), torch.arange(37) % 3)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters())
"""
SCHEDULER = "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)"
RUNNER = """
import json, sys, torch, melodeon
torch.set_num_threads(1)
melodeon.join(virtual_workers=1).close()  # before any tensor work, as the pages ask
for name, code in json.load(sys.stdin):
    space = {}
    exec(PRELUDE, space)
    if "scheduler" in code:
        exec(SCHEDULER, space)
    exec(compile(code, name, "exec"), space)
    space["job"].close()
    print("ran", name, flush=True)
"""


def blocks(page: Path, language: str) -> Iterator[tuple[str, str]]:
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        line = page.read_text()[: match.start()].count("\n") + 2
        yield f"{page.name}:{line}", match[1]


def snippets() -> list[tuple[str, str]]:
    return [found for page in PAGES for found in blocks(page, "python")]


def test_every_snippet_compiles() -> None:
    assert snippets()
    for name, code in snippets():
        compile(code, name, "exec")


def test_every_snippet_that_joins_runs(tmp_path: Path) -> None:
    whole = [(name, code) for name, code in snippets() if "melodeon.join(" in code]
    assert len(whole) >= 8
    program = f"PRELUDE, SCHEDULER = {PRELUDE!r}, {SCHEDULER!r}\n{RUNNER}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(whole),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ran ") == len(whole)


def test_every_json_block_parses() -> None:
    for page in PAGES:
        for name, text in blocks(page, "json"):
            whole = text.strip().startswith("{\n")
            for part in [text] if whole else text.strip().splitlines():
                assert isinstance(json.loads(part), dict), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page.name} links to {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text()
    for page in ROOT.glob("docs/*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, f"{page.name} is not in docs/index.md"


def written_commands() -> Iterator[tuple[str, str, str]]:
    """(page, command, rest) of every `melodeon ...` in code spans and blocks."""
    for page in PAGES:
        text = page.read_text()
        code = [match[1] for match in re.finditer(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        code += re.findall(r"`([^`\n]+)`", prose)
        for part in code:
            for match in re.finditer(r"^(?:\$ )?melodeon ([a-z]+)\b([^\n]*)", part, re.MULTILINE):
                yield page.name, match[1], match[2].split("#")[0]


def test_every_command_and_option_named_exists() -> None:
    from typer.main import get_command

    from melodeon.cli.main import app

    known = get_command(app).commands  # type: ignore[attr-defined]
    found = list(written_commands())
    assert {command for _, command, _ in found} == set(COMMANDS), "every command is shown, and no other"
    for page, command, rest in found:
        assert command in known, f"{page} names `melodeon {command}`"
        options = {option for param in known[command].params for option in (*param.opts, *param.secondary_opts)}
        before_script = rest.split(".py")[0] if command in ("run", "verify", "scan") else rest
        for option in re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", before_script):
            assert option in {*options, "--help"}, f"{page}: melodeon {command} has no {option}"


def test_the_api_page_lists_what_is_public() -> None:
    page = (ROOT / "docs/api.md").read_text()
    assert set(re.findall(r"^\| `melodeon\.(\w+)`", page, re.MULTILINE)) == set(melodeon.__all__)
    for name, code in re.findall(r"^\| `melodeon\.(\w+)` \| (\d)", page, re.MULTILINE):
        assert getattr(melodeon, name).exit_code == int(code)


def test_what_the_api_page_lists_of_the_job_exists() -> None:
    page = (ROOT / "docs/api.md").read_text().split("## Job")[1].split("## Errors")[0]
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    assert listed
    assert listed <= set(dir(melodeon.Job))


def test_the_loop_page_lists_the_arguments_of_join() -> None:
    section = (ROOT / "docs/loop.md").read_text().split("## `melodeon.join(...)`")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(inspect.signature(melodeon.join).parameters)


def test_the_run_folder_page_names_the_default_place() -> None:
    assert f"`{Launch().runs_root}/<id>/`" in (ROOT / "docs/run-folder.md").read_text()


def test_pages_speak_of_nothing_unfinished() -> None:
    for page in PAGES:
        assert not re.search(r"\b(TODO|FIXME|TBD|XXX)\b", page.read_text()), page.name
