"""The cluster as an object: one method for every route, values of `core.service` in and out."""

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import msgspec

from melodeon.client.follow import QUIET_S, follow
from melodeon.client.transport import PATIENCE_S, Transport
from melodeon.core import service
from melodeon.core.errors import NotFound, UsageError
from melodeon.core.spec import Spec

LOGS_WAIT_S = 20.0
PAGE = 500

JobFile = Spec | Mapping[str, object]


class _Policy(msgspec.Struct):
    policy: str
    policies: tuple[str, ...] = ()


class Cluster:
    """A cluster's service.

    Found by `url` and `token`, by MELODEON_URL and MELODEON_TOKEN, or else by the file that a service of this machine
    leaves: in `state`, in the working folder's `.melodeon/cluster`, or for the user. Errors are those of the tree: a
    wrong request is a UsageError, an unknown job NotFound, a service that is not there Unreachable.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        state: Path | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._transport = Transport(url, token, state, patience_s)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        self._transport.close()

    @property
    def url(self) -> str:
        """The service's address."""
        return self._transport.url

    # --- jobs ---

    def submit(self, job: JobFile, *, dry_run: bool = False, request_id: str | None = None) -> service.Submission:
        """Submit a job. Sent again after a broken connection it is still one job; see `request_id`."""
        body = job.to_json() if isinstance(job, Spec) else dict(job)
        request_id = request_id or uuid.uuid4().hex
        return self._transport.ask(
            service.Submission, "POST", "/jobs", params={"dry_run": dry_run or None}, body=body, request_id=request_id
        )

    def job(self, job: str) -> service.JobInfo:
        """A job by its id, the beginning of it, or `last`."""
        return self._transport.ask(service.JobInfo, "GET", _path(job))

    def jobs(
        self,
        *,
        phase: service.Phase | None = None,
        user: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> tuple[service.JobInfo, ...]:
        """Jobs in the order of their submission; all of them without a limit."""
        found: list[service.JobInfo] = []
        while limit is None or len(found) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            params = {"phase": phase, "user": user, "after": found[-1].id if found else after, "limit": size}
            page = self._transport.ask(tuple[service.JobInfo, ...], "GET", "/jobs", params=params)
            found += page
            if len(page) < size:
                break
        return tuple(found)

    def edit(self, job: str, changes: Mapping[str, object]) -> service.Submission:
        """Change fields of a job's file; it is judged again."""
        return self._transport.ask(service.Submission, "PATCH", _path(job), body=dict(changes))

    def cancel(self, job: str, *, request_id: str | None = None) -> service.JobInfo:
        """End a job for good."""
        return self._transport.ask(
            service.JobInfo, "POST", _path(job, "cancel"), request_id=request_id or uuid.uuid4().hex
        )

    def scale(self, job: str, workers: int | None) -> service.JobInfo:
        """Fix a job's number of workers; None: back to the policy. For operators."""
        return self._transport.ask(service.JobInfo, "POST", _path(job, "scale"), body={"workers": workers})

    def logs(self, job: str, start: str = "", *, worker: int | None = None, wait_s: float = 0.0) -> service.LogChunk:
        """A piece of a job's output after the mark `start`; waits for some, up to `wait_s`."""
        params = {"from": start or None, "worker": worker, "wait_s": wait_s or None}
        return self._transport.ask(service.LogChunk, "GET", _path(job, "logs"), params=params, wait_s=wait_s)

    def follow_logs(self, job: str, start: str = "", *, worker: int | None = None) -> Iterator[str]:
        """A job's output as it comes, until the job has ended."""
        while True:
            chunk = self.logs(job, start, worker=worker, wait_s=LOGS_WAIT_S)
            if chunk.text:
                yield chunk.text
            if chunk.over:
                return
            start = chunk.next

    def story(self, job: str) -> tuple[service.Sentence, ...]:
        """What happened to a job and why."""
        return self._transport.ask(tuple[service.Sentence, ...], "GET", _path(job, "story"))

    def series(self, job: str) -> service.Series:
        """What a job did over time."""
        return self._transport.ask(service.Series, "GET", _path(job, "series"))

    def wait(self, job: str, timeout_s: float | None = None) -> service.JobInfo:
        """Wait until a job is over, and return how; after `timeout_s` it is returned as it is."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        name = self.job(job).id
        while True:
            left_s = QUIET_S if until is None else max(0.05, min(QUIET_S, until - time.monotonic()))
            with closing(follow(self._transport, None, name, quiet_s=left_s)) as news:
                for number, _ in enumerate(news):
                    found = self.job(name)
                    if found.phase in service.OVER or (until is not None and time.monotonic() >= until):
                        return found
                    if number and until is not None:
                        break  # and wait for what is left

    # --- the cluster ---

    def overview(self) -> service.Overview:
        """The cluster now."""
        return self._transport.ask(service.Overview, "GET", "/overview")

    def nodes(self) -> tuple[service.NodeInfo, ...]:
        """The nodes, and who holds their devices."""
        return self._transport.ask(tuple[service.NodeInfo, ...], "GET", "/nodes")

    def set_node(self, node: str, *, up: bool | None = None, drained: bool | None = None) -> service.NodeInfo:
        """Say that a node is up or down, or to be left empty. For operators."""
        said = {name: value for name, value in (("up", up), ("drained", drained)) if value is not None}
        return self._transport.ask(service.NodeInfo, "POST", f"/nodes/{quote(node, safe='')}", body=said)

    def events(self, after: int = 0, *, job: str | None = None, limit: int = 200) -> tuple[service.EventInfo, ...]:
        """The cluster's log after a number, oldest first."""
        params = {"after": after, "job": job, "limit": limit}
        return self._transport.ask(tuple[service.EventInfo, ...], "GET", "/events", params=params)

    def follow_events(self, after: int | None = None, *, job: str | None = None) -> Iterator[service.EventInfo]:
        """The log as it grows, without an end; each event once, also when connections break. None: from now on."""
        for event in follow(self._transport, after, job):
            if isinstance(event, service.EventInfo):
                yield event

    def timeline(self, since: float | None = None, until: float | None = None) -> service.Timeline:
        """Who held which devices between two moments; by default in the last hour."""
        return self._transport.ask(service.Timeline, "GET", "/timeline", params={"since": since, "until": until})

    def policy(self) -> str:
        """The policy that decides."""
        return self._transport.ask(_Policy, "GET", "/policy").policy

    def policies(self) -> tuple[str, ...]:
        """The policies that there are."""
        return self._transport.ask(_Policy, "GET", "/policy").policies

    def set_policy(self, name: str) -> str:
        """Decide by another policy from now on. For operators."""
        return self._transport.ask(_Policy, "PUT", "/policy", body={"policy": name}).policy

    def whatif(self, *, policy: str | None = None, job: JobFile | None = None) -> service.WhatIf:
        """The cluster played forward from now, under another policy, or with one more job."""
        body = {"policy": policy, "job": job.to_json() if isinstance(job, Spec) else job}
        return self._transport.ask(service.WhatIf, "POST", "/whatif", body=body)

    def metrics(self) -> str:
        """Figures for Prometheus."""
        return self._transport.fetch("GET", "/metrics").decode()

    def is_well(self) -> bool:
        """Whether the service is there and knows this token; raises what is wrong."""
        self._transport.fetch("GET", "/healthz")
        return True


def _path(job: str, what: str = "") -> str:
    """A job's route; its name is one part of the path, whatever is in it."""
    if not job:
        raise UsageError("job '' is no name: give a job's id, the beginning of it, or `last`")
    if job in (".", "..") or "/" in job:  # paths, which quoting does not keep from being resolved or cut
        raise NotFound(f"job {job!r} is not known here: see `melodeon ps`")
    name = quote(job, safe="")
    return f"/jobs/{name}/{what}" if what else f"/jobs/{name}"
