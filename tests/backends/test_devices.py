"""What this machine plays."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.backends.devices import Devices, Gpu, SlotMap, find_devices, list_gpus, read_topology, type_name
from melodeon.core.cluster import DeviceType
from melodeon.core.errors import MelodeonError, NotFound, UsageError

A100, T4 = DeviceType("A100"), DeviceType("T4")
GPUS = [
    Gpu(index=0, uuid="GPU-a", type=A100),
    Gpu(index=1, uuid="GPU-b", type=T4),
    Gpu(index=2, uuid="GPU-c", type=A100),
]


def shape(devices: Devices) -> list[tuple[str, str, int]]:
    return [(node.id, node.device_type, node.num_devices) for node in devices.cluster.nodes]


def test_a_machine_without_gpus_is_its_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert shape(find_devices(gpus=[])) == [("node000", "cpu", cores)]
    assert shape(find_devices(devices=7)) == [("node000", "cpu", 7)]
    assert shape(find_devices(cluster="2x4:cpu,1x2:V100", gpus=[])) == [
        ("node000", "cpu", 4),
        ("node001", "cpu", 4),
        ("node002", "V100", 2),
    ]


def test_gpus_are_nodes_by_type() -> None:
    found = find_devices(gpus=GPUS)
    assert shape(found) == [("node000", "A100", 2), ("node001", "T4", 1)]
    assert found.cuda == {"node000": ("GPU-a", "GPU-c"), "node001": ("GPU-b",)}
    assert find_devices(devices=2, gpus=GPUS).cuda == {}


def test_a_text_is_backed_by_what_is_there() -> None:
    found = find_devices(cluster="1x8:cpu,1x1:T4,2x1:A100", gpus=GPUS)
    assert found.cuda == {"node001": ("GPU-b",), "node002": ("GPU-a",), "node003": ("GPU-c",)}
    assert find_devices(cluster="1x3:any", gpus=GPUS).cuda == {"node000": ("GPU-a", "GPU-b", "GPU-c")}
    with pytest.raises(UsageError, match="node 'node000' has 3 A100 devices, and 2 of 3 GPUs of this machine are left"):
        find_devices(cluster="1x3:A100", gpus=GPUS)


def test_one_way_to_say_it() -> None:
    with pytest.raises(UsageError, match="--devices and --cluster both say"):
        find_devices(devices=1, cluster="1x1:cpu")
    with pytest.raises(UsageError, match="at least 1"):
        find_devices(devices=0)


def test_the_driver_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\n"
        "echo '0, GPU-11, NVIDIA A100-SXM4-80GB'\n"
        "echo '1, GPU-22, Tesla T4'\n"
        "echo '2, GPU-33, NVIDIA A10, rev 2'\n"
    )
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [gpu.type for gpu in list_gpus()] == ["A100-SXM4-80GB", "T4", "A10-rev-2"]
    for visible, uuids in (("2,0", ["GPU-33", "GPU-11"]), ("GPU-2", ["GPU-22"]), ("1,7,0", ["GPU-22"]), ("", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [gpu.uuid for gpu in list_gpus()] == uuids
    smi.write_text("#!/bin/sh\necho broken\nexit 9\n")
    assert list_gpus() == []
    assert list_gpus("no-such-program") == []


@given(st.text(max_size=80))
def test_a_type_can_be_written_in_a_jobs_file(name: str) -> None:
    from melodeon.core.spec import TYPE

    assert TYPE.fullmatch(type_name(name))


def test_a_node_of_more_gpus_than_are_there() -> None:
    with pytest.raises(UsageError, match="has 1 V100 device, and 0 of 1 GPU of this machine are left"):
        find_devices(cluster="1x1:A100,1x1:V100", gpus=GPUS[:1])


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text("nodes:\n- {id: big, type: V100, devices: 4, rack: r1}\n- {devices: 2}\n")
    cluster = read_topology(file)
    assert [(n.id, n.device_type, n.num_devices, n.rack) for n in cluster.nodes] == [
        ("big", "V100", 4, "r1"),
        ("node001", "cpu", 2, ""),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: [", "is no YAML in line"),
        ("- 1", "must have one field, `nodes`"),
        ("nodes: []", "must have one field, `nodes`"),
        ("nodes: [{devices: 1}]\nmore: 1", "must have one field, `nodes`"),
        ("nodes: [4]", "node 1 is 4: write a table"),
        ("nodes: [{device: 4}]", "node 1 has the field 'device'"),
        ("nodes: [{devices: true}]", "node 1 has devices True"),
        ("nodes: [{devices: 0}]", "node 1 has devices 0"),
        ("nodes: [{devices: 1, id: ../x}]", "node 1 has the id '../x'"),
        ("nodes: [{devices: 1, type: a b}]", "node 1 has the type 'a b'"),
        ("nodes: [{devices: 1, id: a}, {devices: 1, id: a}]", "node 'a' is named twice"),
        ("!!python/object/apply:os.system [ls]", "is no YAML"),
        ("nodes: [{devices: 1000001}]", "nodes.yaml' has 1,000,001 devices: the most that can be is 1,000,000"),
        ("nodes: [{devices: 600000}, {devices: 600000}]", "has 1,200,000 devices: the most that can be is 1,000,000"),
        (f"nodes: [{{devices: {'9' * 5000}}}]", "is no YAML"),
    ],
)
def test_a_file_with_a_mistake(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(text)
    with pytest.raises(MelodeonError, match=words):
        read_topology(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="cannot be read"):
        read_topology(tmp_path / "none.yaml")


MAP = SlotMap({"a": 2, "g": 3, "b": 4}, {"g": ("GPU-1", "GPU-2", "GPU-3")})


def test_nodes_of_one_kind_are_numbered_through() -> None:
    assert MAP.to_agent({"a": (1,), "b": (0, 3)}) == [1, 2, 5]
    assert MAP.to_agent({"g": (2, 0)}) == [0, 2]
    assert MAP.size == {False: 6, True: 3}
    assert MAP.environment(cuda=True)["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2,GPU-3"
    assert MAP.environment(cuda=False) == {"CUDA_VISIBLE_DEVICES": ""}


@given(st.dictionaries(st.sampled_from("ab"), st.sets(st.integers(0, 3), min_size=1), min_size=1))
def test_there_and_back(slots: dict[str, set[int]]) -> None:
    wanted = {node: tuple(sorted(index for index in own if node == "b" or index < 2)) for node, own in slots.items()}
    wanted = {node: own for node, own in wanted.items() if own}
    if wanted:
        assert not MAP.uses_cuda(wanted)
        assert MAP.to_nodes(MAP.to_agent(wanted), cuda=False) == wanted


def test_devices_of_two_kinds_run_no_job() -> None:
    with pytest.raises(UsageError, match="choose one kind, CPU or CUDA"):
        MAP.uses_cuda({"a": (0,), "g": (0,)})
