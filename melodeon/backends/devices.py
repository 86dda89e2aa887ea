"""The devices of this machine as a cluster: CPU slots, CUDA devices, or whatever a text or a file says it plays.

Every node is on this machine. A job runs on devices of one kind, CPU slots or CUDA devices, and has one agent for all
of them: the devices of one kind are numbered through from the first node to the last, and these numbers are the agent's
slots. So the slots of two CPU nodes are different cores, and slot i of a CUDA job is its CUDA device i.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from melodeon.core.cluster import Cluster, DeviceType, Node, NodeId, check_size
from melodeon.core.errors import NotFound, UsageError
from melodeon.core.spec import TYPE
from melodeon.core.text import counted

CPU = DeviceType("cpu")
SMI = "nvidia-smi"
SMI_S = 20.0
"""A driver that takes longer to list its devices is not well."""
MAKERS = ("NVIDIA ", "Tesla ", "GeForce ", "Quadro ")
"""Beginnings of a GPU's name that say nothing about its speed."""
NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?")

Slots = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One CUDA device of this machine."""

    index: int
    uuid: str
    type: DeviceType


@dataclass(frozen=True, slots=True)
class Devices:
    """The cluster that this machine plays, and what is behind it."""

    cluster: Cluster
    cuda: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The CUDA devices of the nodes that have some; all other nodes are CPU slots."""


# -- finding them ------------------------------------------------------------------------------------------------------


def find_devices(
    *,
    devices: int | None = None,
    cluster: str | None = None,
    topology: Path | None = None,
    gpus: Sequence[Gpu] | None = None,
) -> Devices:
    """What this machine plays.

    `devices` are so many CPU slots; `cluster` is a text such as `2x4:cpu`; `topology` is a YAML file. Without any, the
    CUDA devices where there are some, else a slot for each core.
    """
    given = [
        name
        for name, value in (("devices", devices), ("cluster", cluster), ("topology", topology))
        if value is not None
    ]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(f'--{name}' for name in given)} both say what there is: give one of them")
    if devices is not None:
        if devices < 1:
            raise UsageError(f"--devices {devices} leaves nothing to train on: give at least 1")
        return Devices(Cluster.parse(f"1x{devices}:{CPU}"))
    found = list_gpus() if gpus is None else gpus
    if cluster is not None:
        return _backed(Cluster.parse(cluster), found)
    if topology is not None:
        return _backed(read_topology(topology), found)
    return _all_gpus(found) if found else Devices(Cluster.parse(f"1x{len(os.sched_getaffinity(0))}:{CPU}"))


def list_gpus(command: str = SMI) -> list[Gpu]:
    """The CUDA devices that jobs may use, as the driver lists them; none without a driver."""
    path = shutil.which(command)
    if path is None:
        return []
    query = [path, "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode != 0:
        return []
    rows = [[part.strip() for part in line.split(",", 2)] for line in answer.stdout.splitlines()]
    found = [
        Gpu(index=int(row[0]), uuid=row[1], type=type_name(row[2]))
        for row in rows
        if len(row) == 3 and row[0].isdigit()
    ]
    return _visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def type_name(name: str) -> DeviceType:
    """A device type as jobs name it: `NVIDIA A100-SXM4-80GB` is an `A100-SXM4-80GB`."""
    for maker in MAKERS:
        name = name.removeprefix(maker)
    return DeviceType(re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-")[:40] or "gpu")


def _visible(gpus: Sequence[Gpu], variable: str | None) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order, up to the first that is not there, as CUDA reads it."""
    if variable is None:
        return list(gpus)
    chosen: list[Gpu] = []
    for word in filter(None, (part.strip() for part in variable.split(","))):
        match = [gpu for gpu in gpus if word == str(gpu.index) or (not word.isdigit() and gpu.uuid.startswith(word))]
        if len(match) != 1:
            break
        chosen += match
    return chosen


def _all_gpus(gpus: Sequence[Gpu]) -> Devices:
    """One node for each type, since a node has one."""
    types = list(dict.fromkeys(gpu.type for gpu in gpus))
    nodes, cuda = [], {}
    for number, kind in enumerate(types):
        own = tuple(gpu.uuid for gpu in gpus if gpu.type == kind)
        nodes.append(Node(id=NodeId(f"node{number:03d}"), device_type=kind, num_devices=len(own)))
        cuda[f"node{number:03d}"] = own
    return Devices(Cluster(tuple(nodes)), cuda)


def _backed(cluster: Cluster, gpus: Sequence[Gpu]) -> Devices:
    """Give every node that is not of CPU slots its CUDA devices; without a GPU, CPU slots play all types.

    A node gets devices of its own type where there are some, else any: a name may be declared.
    """
    if not gpus:
        return Devices(cluster)
    left, cuda = list(gpus), {}
    for node in cluster.nodes:
        if node.device_type == CPU:
            continue
        same = [gpu for gpu in left if gpu.type == node.device_type]
        own = (same if any(gpu.type == node.device_type for gpu in gpus) else left)[: node.num_devices]
        if len(own) < node.num_devices:
            raise UsageError(
                f"node {node.id!r} has {counted(node.num_devices, f'{node.device_type} device')}, and {len(own)} of "
                f"{counted(len(gpus), 'GPU')} of this machine are left for it: name fewer, or use the type cpu"
            )
        left = [gpu for gpu in left if gpu not in own]
        cuda[str(node.id)] = tuple(gpu.uuid for gpu in own)
    return Devices(cluster, cuda)


# -- a file ------------------------------------------------------------------------------------------------------------


def read_topology(path: Path) -> Cluster:
    """`nodes: [{id: a, type: cpu, devices: 4, rack: r1}]`; an id, a type and a rack may be left out."""
    try:
        raw = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise NotFound(f"{path} cannot be read ({error.strerror}): give a file that lists nodes") from error
    except (yaml.YAMLError, ValueError) as error:  # a number of thousands of digits, a day that is none
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where is not None else ""
        raise UsageError(f"{path} is no YAML{line}: write `nodes:` and a line such as `- {{devices: 4}}`") from error
    nodes = raw.get("nodes") if isinstance(raw, dict) else None
    if not isinstance(nodes, list) or not nodes or set(raw) != {"nodes"}:
        raise UsageError(f"{path} must have one field, `nodes`, a list of nodes such as `- {{type: cpu, devices: 4}}`")
    found = tuple(_node(path, number, node) for number, node in enumerate(nodes))
    check_size(str(path), sum(node.num_devices for node in found))
    return Cluster(found)


def _node(path: Path, number: int, raw: object) -> Node:
    where = f"{path}: node {number + 1}"
    if not isinstance(raw, dict):
        raise UsageError(f"{where} is {raw!r}: write a table such as {{id: a, type: cpu, devices: 4, rack: r1}}")
    if unknown := sorted(str(name) for name in raw if name not in ("id", "type", "devices", "rack")):
        raise UsageError(f"{where} has the field {unknown[0]!r}: the fields are id, type, devices, rack")
    name, kind, rack = str(raw.get("id", f"node{number:03d}")), str(raw.get("type", CPU)), str(raw.get("rack", ""))
    count = raw.get("devices")
    if not NODE_NAME.fullmatch(name):
        raise UsageError(f"{where} has the id {name!r}: use letters, digits, dots and dashes")
    if not TYPE.fullmatch(kind):
        raise UsageError(f"{where} has the type {kind!r}: use up to 40 letters, digits, dots and dashes")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"{where} has devices {count!r}: give a whole number from 1 on")
    return Node(id=NodeId(name), device_type=DeviceType(kind), num_devices=count, rack=rack)


# -- an agent's slots --------------------------------------------------------------------------------------------------


class SlotMap:
    """Between devices by node, as the cluster names them, and the slots of a job's one agent."""

    def __init__(self, capacity: Mapping[str, int], cuda: Mapping[str, Sequence[str]]) -> None:
        self._capacity, self._cuda = capacity, cuda
        self._first: dict[str, int] = {}
        self.size = {True: 0, False: 0}
        """Devices of the machine: CUDA (True) and CPU (False)."""
        for node, count in capacity.items():
            self._first[node] = self.size[node in cuda]
            self.size[node in cuda] += count

    def uses_cuda(self, slots: Slots) -> bool:
        """Which kind of devices these are."""
        kinds = {self._known(node) in self._cuda for node in slots}
        if len(kinds) != 1:
            raise UsageError(
                f"devices of {', '.join(slots) or 'no node'} cannot run one job: choose one kind, CPU or CUDA"
            )
        return kinds.pop()

    def to_agent(self, slots: Slots) -> list[int]:
        """The agent's slots for these devices."""
        found = []
        for node, indices in slots.items():
            most = self._capacity[self._known(node)]
            for index in indices:
                if not 0 <= index < most:
                    raise UsageError(
                        f"device {index} of node {node!r} is not there: it has the devices 0 to {most - 1}"
                    )
                found.append(self._first[node] + index)
        if not found or len(set(found)) < len(found):
            raise UsageError(f"devices {dict(slots)} cannot be given to a job: name at least one, and each once")
        return sorted(found)

    def to_nodes(self, slots: Sequence[int], *, cuda: bool) -> dict[str, tuple[int, ...]]:
        """The devices behind an agent's slots; what is not of this cluster is left out."""
        found: dict[str, tuple[int, ...]] = {}
        for node, first in self._first.items():
            last = first + self._capacity[node]
            own = tuple(sorted(slot - first for slot in slots if first <= slot < last))
            if own and (node in self._cuda) is cuda:
                found[node] = own
        return found

    def environment(self, *, cuda: bool) -> dict[str, str]:
        """What makes an agent's slot i the CUDA device i, or hides all of them."""
        if not cuda:
            return {"CUDA_VISIBLE_DEVICES": ""}
        devices = [device for node in self._capacity for device in self._cuda.get(node, ())]
        return {"CUDA_VISIBLE_DEVICES": ",".join(devices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def _known(self, node: str) -> str:
        if node not in self._first:
            raise UsageError(f"node {node!r} is not in the cluster: its nodes are {', '.join(self._first)}")
        return node
