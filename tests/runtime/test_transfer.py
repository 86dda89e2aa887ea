"""A state arrives with the same bits, sharing and layout, by every way; workers are threads of this process."""

import select
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.errors import UsageError, WorkerLost
from melodeon.core.replication import Copy, Place, plan
from melodeon.runtime import transfer, transfer_layout, transfer_link, transfer_shared, transfer_socket
from melodeon.runtime.codec import DTYPES
from melodeon.runtime.transfer import Door, Received, describe, furnish, remember, replicate
from melodeon.runtime.transfer_layout import Memory, Targets, cut, outline, parse_header, tensors_of
from tests.runtime.transfer_cases import alike, copy, rich_state, strangers_call

BOTH = pytest.mark.parametrize("local", [True, False], ids=["shared", "socket"])


def attempt(
    copies: Sequence[Copy], state: object, into: dict[int, object] | None = None, checked: bool = False
) -> dict[int, Received | BaseException | None]:
    """Everybody's part at once: what each received, or the error that ended it."""
    workers = sorted({worker for each in copies for worker in (each.source, each.target)})
    targets = {each.target for each in copies}
    doors = {worker: Door() for worker in workers}
    invitations = {worker: door.invitation for worker, door in doors.items()}
    with ThreadPoolExecutor(len(workers)) as threads:
        futures = {
            worker: threads.submit(
                replicate,
                *(worker, copies, doors[worker], invitations),
                state=None if worker in targets else state,
                into=(into or {}).get(worker),
                checked=checked,
            )
            for worker in workers
        }
        found = {worker: future.exception(20) or future.result() for worker, future in futures.items()}
    for door in doors.values():
        door.close()
    return found


def run(*args: Any, **options: Any) -> dict[int, Received | None]:
    """Everybody's part, which nobody fails in."""
    results: dict[int, Received | None] = {}
    for worker, found in attempt(*args, **options).items():
        if isinstance(found, BaseException):
            raise found
        results[worker] = found
    return results


def got(results: dict[int, Received | None], worker: int) -> Received:
    received = results[worker]
    assert received is not None
    return received


@BOTH
@pytest.mark.parametrize("checked", [False, True])
def test_the_same_bits_and_types_arrive(local: bool, checked: bool) -> None:
    state = rich_state()
    results = run([copy(0, 1, local=local)], state, checked=checked)
    assert results[0] is None
    arrived = got(results, 1).state
    assert alike(arrived, state)
    assert type(arrived["models"]) is type(state["models"])
    assert arrived["plain"][5:] == state["plain"][5:]
    assert (arrived["numpy"][0] == state["numpy"][0]).all()
    assert got(results, 1).in_place == frozenset()


@BOTH
def test_shared_tensors_cross_once_and_stay_shared(local: bool) -> None:
    state = rich_state()
    received = got(run([copy(0, 1, local=local)], state), 1)
    models = received.state["models"]
    assert models["embed"].data_ptr() == models["head"].data_ptr()
    assert sum(outline(state).header.sizes) == received.num_bytes
    alone = outline({**state, "models": {**state["models"], "head": state["models"]["head"].clone()}})
    assert sum(alone.header.sizes) - received.num_bytes == state["models"]["head"].numel() * 4


def test_dense_layouts_are_kept() -> None:
    received = got(run([copy(0, 1)], rich_state()), 1).state["odd"]
    assert received["channels_last"].is_contiguous(memory_format=torch.channels_last)
    assert received["transposed"].stride() == (1, 60)
    assert received["strided"].is_contiguous()


@BOTH
def test_the_receivers_own_tensors_are_filled(local: bool) -> None:
    state, mine = rich_state(0), rich_state(5)
    received = got(run([copy(0, 1, local=local)], state, {1: mine}), 1)
    assert alike(received.state, state)
    for path in ("models.embed", "models.head", "odd.channels_last", "odd.scalar", "odd.parameter", "large"):
        assert path in received.in_place
    assert received.state["large"].data_ptr() == mine["large"].data_ptr()
    assert received.state["odd"]["channels_last"].data_ptr() == mine["odd"]["channels_last"].data_ptr()
    assert alike(mine["large"], state["large"])
    # What does not fill memory of its own cannot be written as one piece.
    assert "odd.strided" not in received.in_place


def test_a_tensor_of_another_shape_type_or_layout_is_left_alone() -> None:
    state = {
        "a": torch.ones(4, 4),
        "b": torch.ones(4),
        "c": torch.ones(4, 4).t(),
        "d": torch.ones(2),
        "new": torch.ones(3),
    }
    state["c"][0, 1] = 7
    mine = {
        "a": torch.zeros(4, 5),
        "b": torch.zeros(4, dtype=torch.float64),
        "c": torch.zeros(4, 4),
        "d": torch.zeros(2),
    }
    received = got(run([copy(0, 1)], state, {1: mine}), 1)
    assert received.in_place == {"d"}
    assert alike(received.state, state)
    assert mine["a"].sum() == mine["b"].sum() == mine["c"].sum() == 0


def test_tensors_that_only_the_receiver_shares_are_not_filled_twice() -> None:
    shared = torch.zeros(3)
    received = got(
        run([copy(0, 1)], {"a": torch.ones(3), "b": torch.full((3,), 2.0)}, {1: {"a": shared, "b": shared}}), 1
    )
    assert received.in_place == {"a"}
    assert alike(received.state, {"a": torch.ones(3), "b": torch.full((3,), 2.0)})


def test_tensors_that_only_the_holder_shares_are_shared_after() -> None:
    one = torch.ones(3)
    received = got(run([copy(0, 1)], {"a": one, "b": one}, {1: {"a": torch.zeros(3), "b": torch.zeros(3)}}), 1)
    assert received.in_place == {"a"}
    assert received.state["a"].data_ptr() == received.state["b"].data_ptr()


def test_new_tensors_are_on_their_own_memory_and_aligned() -> None:
    state = {"moments": [torch.randn(900_000), torch.randn(3), torch.randn(1_000_000).bfloat16()]}
    moments = got(run([copy(0, 1)], state), 1).state["moments"]
    assert alike(moments, state["moments"])
    assert all(tensor.data_ptr() % 64 == 0 for tensor in moments)
    assert all(tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size() for tensor in moments)
    moments[1].add_(1)


def test_a_furnished_state_is_received_into() -> None:
    state = rich_state()
    model = {"models": rich_state(3)["models"]}
    ready = furnish(describe(state), model)
    assert ready["models"]["embed"].data_ptr() == model["models"]["embed"].data_ptr()
    received = got(run([copy(0, 1)], state, {1: ready}), 1)
    assert alike(received.state, state)
    assert received.in_place >= {"models.embed", "models.head", "large", "optimizers.0.exp_avg"}


def test_what_was_filled_in_part_is_put_back() -> None:
    mine, untouched = rich_state(1), rich_state(1)
    put_back = remember(mine)
    targets = Targets(outline(rich_state(2)).header, tensors_of(mine))
    for size, memory in zip(targets.sizes, targets.memories, strict=True):
        memory.view(0, size)[: size // 2] = b"\1" * (size // 2)
    assert not alike(mine, untouched)
    put_back()
    assert alike(mine, untouched)
    assert torch.is_conj(mine["odd"]["conj"])


@BOTH
def test_two_readers_of_one_holder(local: bool) -> None:
    state = rich_state()
    results = run([copy(0, 1, local=local), copy(0, 2, local=local)], state, {2: rich_state(9)})
    assert alike(got(results, 1).state, state)
    assert alike(got(results, 2).state, state)


def test_both_ways_side_by_side_from_one_holder() -> None:
    state = rich_state()
    results = run([copy(0, 1), copy(0, 2, local=False), copy(0, 3, local=False), copy(0, 4)], state)
    assert all(alike(got(results, worker).state, state) for worker in (1, 2, 3, 4))


def test_the_copies_of_a_round_go_on_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    everybody, parse = threading.Barrier(4), transfer.parse_header

    def meet(header: bytearray) -> Any:
        everybody.wait(10)  # in turn, the first would wait in vain
        return parse(header)

    monkeypatch.setattr(transfer, "parse_header", meet)
    state = rich_state()
    results = run([copy(0, 1), copy(0, 2, local=False), copy(0, 3, local=False), copy(0, 4)], state)
    assert all(alike(got(results, worker).state, state) for worker in (1, 2, 3, 4))


def test_a_whole_plan_with_turns_and_relays() -> None:
    place = {0: Place(host="a"), 1: Place(host="a"), 2: Place(host="b"), 3: Place(host="b"), 4: Place(host="c")}
    place |= {5: Place(host="d"), 6: Place(host="e"), 7: Place(host="a")}
    copies = plan([0, 1], [2, 3, 4, 5, 6, 7], place)
    assert any(each.after for each in copies)
    assert any(each.source == 2 for each in copies)
    state = rich_state()
    results = run(copies, state)
    assert all(alike(got(results, worker).state, state) for worker in (2, 3, 4, 5, 6, 7))


def test_a_later_round_waits_for_the_copy_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []
    real = transfer._receive

    def noting(link: Any, *args: Any) -> Received:
        received = real(link, *args)
        order.append(link.peer)
        return received

    monkeypatch.setattr(transfer, "_receive", noting)
    # Worker 1 may serve worker 3 only when worker 0 has served worker 2.
    run([copy(0, 2, local=False), copy(1, 3, turn=1, local=False, after=[2])], rich_state())
    assert order == [0, 1]


@BOTH
def test_tensors_come_while_the_plain_values_are_being_unpacked(local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    links: list[transfer_link.Link] = []
    receive, parse = transfer._receive, transfer.parse_header

    def noting(link: transfer_link.Link, *args: Any) -> Received:
        links.append(link)
        return receive(link, *args)

    def waiting(header: bytearray) -> Any:
        """What follows the header is the tensors, or the word that the first of them are in the ring."""
        poll = select.poll()
        poll.register(links[0].socket, select.POLLIN)
        assert poll.poll(5000), "the holder has sent the plain values, and waits before it sends a tensor"
        return parse(header)

    monkeypatch.setattr(transfer, "_receive", noting)
    monkeypatch.setattr(transfer, "parse_header", waiting)
    state = rich_state()
    arrived = attempt([copy(0, 1, local=local)], state)[1]
    assert isinstance(arrived, Received), arrived
    assert alike(arrived.state, state)


@BOTH
def test_an_empty_state_and_one_without_tensors(local: bool) -> None:
    for state in ({}, None, {"step": 3, "nothing": torch.empty(0)}):
        assert alike(got(run([copy(0, 1, local=local)], state), 1).state, state)


@BOTH
def test_memory_that_is_reached_through_the_host(local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for tensors on a device."""

    class Staged(Memory):
        def __init__(self, tensor: torch.Tensor) -> None:
            super().__init__(tensor)
            self.direct = False

        def view(self, start: int, size: int) -> memoryview:
            raise AssertionError("a device's memory has no view")

    monkeypatch.setattr(transfer_layout, "Memory", Staged)
    state = rich_state()
    assert alike(got(run([copy(0, 1, local=local)], state, {1: rich_state(4)}, checked=True), 1).state, state)


@BOTH
def test_a_damaged_chunk_is_found_where_chunks_are_checked(local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = transfer_shared if local else transfer_socket
    real, sums = module._sum, iter(range(10**6))
    monkeypatch.setattr(module, "_sum", lambda *args: real(*args) ^ (next(sums) == 1))
    found = attempt([copy(0, 1, local=local)], rich_state(), checked=True)
    assert isinstance(found[1], WorkerLost)
    assert "arrived damaged" in str(found[1])


def test_without_shared_memory_the_local_socket_carries_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer.Ring, "make", lambda: None)
    state = rich_state()
    assert alike(got(run([copy(0, 1), copy(0, 2)], state), 1).state, state)


def test_a_holder_that_is_not_on_this_host_after_all_is_reached_by_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_link, "_connect_local", lambda name: None)
    state = rich_state()
    assert alike(got(run([copy(0, 1), copy(0, 2)], state), 2).state, state)


def test_strangers_are_sent_away_and_hold_nobody_up() -> None:
    door, caller = Door(), Door()
    invitations = {0: door.invitation, 1: caller.invitation}
    hello = transfer_link._HELLO
    strangers = [
        strangers_call(door.invitation, b"GET / HTTP/1.1\r\n\r\n" + bytes(20)),
        strangers_call(door.invitation, b"half"),
        strangers_call(door.invitation, hello.pack(bytes(16), 1, 1)),
        strangers_call(door.invitation, hello.pack(door._word, 1, 77)),
    ]
    state = rich_state()
    with ThreadPoolExecutor(2) as threads:
        sent = threads.submit(replicate, 0, [copy(0, 1)], door, invitations, state=state)
        received = threads.submit(replicate, 1, [copy(0, 1)], caller, invitations).result(20)
        sent.result(20)
    assert received is not None
    assert alike(received.state, state)
    door.close()  # one who was not let in before the awaited one came is sent away now
    caller.close()
    for stranger in strangers:
        with stranger, suppress(ConnectionResetError):
            stranger.settimeout(5)
            assert stranger.recv(1) == b""


def test_a_state_that_cannot_be_described_is_the_holders_error() -> None:
    door = Door()
    with pytest.raises(UsageError, match="type object"):
        replicate(0, [copy(0, 1)], door, {}, state={"bad": object()})
    door.close()


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff" * 40, b"\x82\xa9structure\xc0\xa4rows\x91\x01"])
def test_a_header_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, transfer_link.msgspec.MsgspecError)):
        parse_header(data)


SHAPES = st.lists(st.integers(0, 7), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    # PyTorch warns of complex32 wherever it meets it.
    dtype = DTYPES[draw(st.sampled_from(sorted(set(DTYPES) - {"complex32"})))]
    shape = draw(SHAPES)
    numel = int(torch.Size(shape).numel())
    raw = draw(st.binary(min_size=numel * dtype.itemsize, max_size=numel * dtype.itemsize))
    if dtype is torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype) if raw else torch.empty(0, dtype=dtype)
    tensor = flat.view(shape)
    dims = draw(st.permutations(range(len(shape))))
    return tensor.permute(dims)


@given(st.lists(tensors(), max_size=8), st.data(), st.sampled_from([64, 128, 4096]), st.booleans())
def test_cut_and_put_together_again_any_tensors_are_themselves(
    drawn: list[torch.Tensor], data: st.DataObject, chunk: int, in_place: bool
) -> None:
    again = data.draw(st.lists(st.sampled_from(range(len(drawn))), max_size=3)) if drawn else []
    state = {"a": drawn, "b": [drawn[index] for index in again]}
    sent = outline(state)
    mine = {"a": [torch.zeros_like(tensor) for tensor in drawn]} if in_place else None
    targets = Targets(parse_header(transfer_link.msgspec.msgpack.encode(sent.header)), tensors_of(mine))
    crossing = torch.empty(chunk, dtype=torch.uint8)
    pairs = zip(cut(sent.header.sizes, sent.memories, chunk), cut(targets.sizes, targets.memories, chunk), strict=True)
    for there, here in pairs:
        assert all(span.at + span.size <= chunk for span in there)
        for span in there:
            span.memory.give(span.start, span.size, crossing.data_ptr() + span.at)
        for span in here:
            span.memory.take(span.start, span.size, crossing.data_ptr() + span.at)
    arrived = targets.state()
    assert alike(arrived, state)
    for index, tensor in enumerate(drawn):
        assert arrived["a"][index].dtype == tensor.dtype
        if (
            tensor.numel()
            and tensor.permute(sorted(range(tensor.dim()), key=lambda d: -tensor.stride()[d])).is_contiguous()
        ):
            assert [s for n, s in zip(tensor.shape, arrived["a"][index].stride(), strict=True) if n > 1] == [
                s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1
            ]
