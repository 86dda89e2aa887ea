"""What Prometheus is told: the cluster as it stands when it asks, and how requests went."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.types import Scope

from melodeon.control.api.stream import Hub
from melodeon.control.controller import Controller
from melodeon.core.service import Phase

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_JOBS = 500
"""Running jobs that get lines of their own."""
JOB_FIGURES = {
    "workers": "Devices that a running job holds",
    "step": "Steps that a running job has done",
    "steps_per_second": "Speed of a running job",
    "pause_seconds": "Time without progress because of changes of a job's workers",
}


class Requests:
    """How many requests there were, by route and answer, and how long they took."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._count = Counter(
            "melodeon_http_requests", "Requests answered", ("method", "route", "status"), registry=self.registry
        )
        self._time = Histogram(
            "melodeon_http_request_seconds",
            "Time to answer, streams left out",
            ("route",),
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
            registry=self.registry,
        )

    def note(self, scope: Scope, status: int, took_s: float) -> None:
        """Count a request. Paths that lead nowhere are counted together: there is no end to them."""
        route = getattr(scope.get("route"), "path", None) or "(none)"
        method = scope["method"] if scope["method"] in METHODS else "(other)"
        self._count.labels(method, route, str(status)).inc()
        if not route.endswith("/stream"):
            self._time.labels(route).observe(took_s)


METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})


class ClusterCollector(Collector):
    """The cluster, looked at when somebody asks."""

    def __init__(self, controller: Controller, hub: Hub) -> None:
        self._controller, self._hub = controller, hub

    def collect(self) -> Iterable[Metric]:
        """All figures."""
        now = self._controller.overview()
        yield InfoMetricFamily("melodeon", "The service", value={"version": now.version, "policy": now.policy})
        jobs = GaugeMetricFamily("melodeon_jobs", "Jobs by phase", labels=["phase"])
        for phase, count in now.jobs.items():
            jobs.add_metric([phase], count)
        yield jobs
        devices = GaugeMetricFamily("melodeon_devices", "Devices: all, usable, held by jobs", labels=["state"])
        for state, count in (("all", now.num_devices), ("up", now.devices_up), ("used", now.devices_used)):
            devices.add_metric([state], count)
        yield devices
        yield CounterMetricFamily("melodeon_rounds", "Rounds decided since the start", value=now.rounds)
        yield GaugeMetricFamily("melodeon_round_seconds", "Length of the last round", value=now.round_ms / 1000)
        yield GaugeMetricFamily("melodeon_start_time_seconds", "When the service started", value=now.started_at)
        yield GaugeMetricFamily("melodeon_stream_readers", "Open event streams", value=self._hub.num_readers)
        yield from self._running()

    def _running(self) -> Iterable[Metric]:
        families = {
            name: GaugeMetricFamily(f"melodeon_job_{name}", text, labels=["job", "user"])
            for name, text in JOB_FIGURES.items()
        }
        for job in self._controller.jobs(phase=Phase.RUNNING, limit=MOST_JOBS):
            figures = (job.workers, job.step, job.steps_per_s or 0.0, job.pause_s)
            for family, figure in zip(families.values(), figures, strict=True):
                family.add_metric([job.id, job.user], figure)
        yield from families.values()


def render(registry: CollectorRegistry) -> bytes:
    """All of it as Prometheus reads it."""
    return generate_latest(registry)
