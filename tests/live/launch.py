"""Runs one job as `melodeon run` does, with the patience that tests need; a process of its own, to be killed at will.

python -m tests.live.launch FOLDER NAME '{"workers": 2, ...}' SCRIPT ARGS...
"""

import json
import sys
from pathlib import Path

import msgspec

from melodeon.backends.elastic import Elastic
from melodeon.backends.runs import Request, perform
from melodeon.coord.master_state import JobConfig
from melodeon.core.launch import Launch


def main() -> None:
    folder, name, options_text, script, *args = sys.argv[1:]
    options = json.loads(options_text)
    elastic = None
    history = options.pop("batch_history", None)
    wishes = options.pop("launch", {})
    if options.pop("elastic", True):
        known = ("ttl_s", "silence_s", "resend_s", "agents", "hosts", "listen", "store")
        patience = {key: options.pop(key) for key in known if key in options}
        job = msgspec.convert({"job": "", "agents": patience.get("agents", 1), **options}, JobConfig, strict=False)
        elastic = Elastic(job=job, **patience)
    launch = Launch(
        determinism="D1",
        threads=1,
        runs_root=folder,
        receipt_every=1,
        num_workers=options.get("workers", 1),
        hybrid="hybrid" in options,
        batch_history=history,
        **wishes,
    )
    report = perform(Request(script=script, args=args, launch=launch, name=name, elastic=elastic))
    sys.stderr.write(f"{report.outcome.reason}\n")
    sys.exit(report.outcome.exit_code)


if __name__ == "__main__":
    assert Path("melodeon").is_dir(), "run from the project's root"
    main()
