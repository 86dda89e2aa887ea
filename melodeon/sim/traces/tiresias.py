"""Tiresias' job files and cluster specs, which ElasticFlow's artifact shares.

    job_id, num_gpu, submit_time, iterations, model_name, duration, interval
    job_id, num_gpu, submit_time, start_time, duration, model_size, aggr_interval, model_name, model_scale
    num_switch, num_node_p_switch, num_gpu_p_node, num_cpu_p_node, mem_p_node                   (spec: one line)

A job's rate on what it requested is its iterations over its duration; a table of its model, or of a drawn one where
there is none, gives the shape of its curve.
"""

from pathlib import Path

from melodeon.core.cluster import DEFAULT_TYPE, Cluster, DeviceType, Node, NodeId, check_size
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId
from melodeon.sim.traces.recorded import Recorded, recorded_trace
from melodeon.sim.traces.rows import Row, Trace, csv_rows
from melodeon.sim.traces.throughputs import Throughputs


def read_tiresias(path: Path, throughputs: Throughputs, *, seed: int = 0, skip_bad: bool = False) -> Trace:
    """One line a job."""

    def parse(row: Row) -> Recorded:
        return Recorded(
            id=JobId(row.text("job_id")),
            submit_s=row.number("submit_time", least=0),
            duration_s=row.number("duration", above=0),
            workers=row.devices("num_gpu"),
            iterations=row.number("iterations", above=0) if "iterations" in row.cells else None,
            model=row.text("model_name"),
        )

    return recorded_trace(path.name, csv_rows(path), parse, throughputs, seed=seed, skip_bad=skip_bad)


def read_cluster_spec(path: Path, kind: DeviceType = DEFAULT_TYPE) -> Cluster:
    """The cluster that a spec file describes; the nodes of a switch are a rack."""
    rows = list(csv_rows(path))
    if len(rows) != 1:
        raise UsageError(f"{path} has {len(rows)} lines below its header: a cluster spec has 1")
    (row,) = rows
    racks, nodes, devices = (row.devices(column) for column in ("num_switch", "num_node_p_switch", "num_gpu_p_node"))
    check_size(str(path), racks * nodes * devices)
    return Cluster(
        tuple(
            Node(
                id=NodeId(f"node{rack * nodes + index:03d}"),
                device_type=kind,
                num_devices=devices,
                rack=f"rack{rack:02d}" if racks > 1 else "",
            )
            for rack in range(racks)
            for index in range(nodes)
        )
    )
