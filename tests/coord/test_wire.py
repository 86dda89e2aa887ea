"""Frames: what goes in comes out, in any pieces; what is no frame is named."""

import asyncio
import contextlib
import socket
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.coord import wire
from melodeon.coord.lines import Spoken
from melodeon.coord.messages import Answer, Ask, Notice, Orders, Phase, Report, Status, WorkerOrder
from melodeon.core.view import Seat, View

VIEW = View(
    generation=3,
    seats=(Seat(worker=1, agent="a", host="h", count=2), Seat(worker=4, agent="b", host="h", count=1)),
    planned=True,
    meeting="file",
    reason="one more",
    leaving=(2,),
)
STATUS = Status(worker=1, pid=2, number=3, phase=Phase.MEMBER, busy_s=(0.5, 0.25), factor=2)
DECODER = msgspec.msgpack.Decoder(Spoken)
MESSAGES = [
    STATUS,
    Notice(number=1, view=VIEW),
    Orders(fence=7, number=2, agent="a", workers=(WorkerOrder(worker=1, slot=0, notice=Notice(number=1, view=VIEW)),)),
    Report(agent="a", incarnation="x", number=4, host="h", slots=2, workers=(STATUS,)),
    Ask(id="1", what="scale", values={"workers": 3}),
    Answer(id="1", ok=False, text="no", values={"rule": [1, 2.5, None]}),
]


async def streams(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


def test_every_message_crosses_a_real_connection_both_ways():
    async def main():
        near, far = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=near)
        far_reader, far_writer = await asyncio.open_connection(sock=far)
        for message in MESSAGES:
            writer.write(wire.pack(message))
            far_writer.write(wire.pack(await wire.read_frame(far_reader, DECODER)))
            assert await wire.read_frame(reader, DECODER) == message
        far_writer.close()
        assert await wire.read_frame(reader, DECODER) is None
        writer.close()
        await asyncio.gather(writer.wait_closed(), far_writer.wait_closed())

    asyncio.run(main())


@given(st.lists(st.sampled_from(MESSAGES), max_size=6), st.lists(st.integers(1, 200), max_size=30))
def test_bytes_may_arrive_in_any_pieces(messages, sizes):
    data = b"".join(wire.pack(message) for message in messages)
    frames, found = wire.Frames(DECODER), []
    for size in [*sizes, len(data)]:
        found += frames.feed(data[:size])
        data = data[size:]
    assert found == messages


@given(st.lists(st.sampled_from(MESSAGES), max_size=2), st.binary(max_size=40))
def test_after_any_bytes_both_readers_have_found_the_same(messages, noise):
    data = b"".join(wire.pack(message) for message in messages) + noise
    by_stream, by_pieces, frames = [], [], wire.Frames(DECODER)

    async def read():
        reader = await streams(data)
        while (message := await wire.read_frame(reader, DECODER)) is not None:
            by_stream.append(message)

    with contextlib.suppress(wire.FrameError, ConnectionError):
        asyncio.run(read())
    with contextlib.suppress(wire.FrameError):
        for byte in data:
            by_pieces += frames.feed(bytes([byte]))
    assert by_stream == by_pieces
    assert by_stream[: len(messages)] == messages


def test_a_length_over_the_limit_is_refused_before_anything_is_read():
    async def main():
        reader = await streams(struct.pack(">I", wire.MAX_FRAME + 1))
        with pytest.raises(wire.FrameError, match=f"{wire.MAX_FRAME + 1} bytes: at most {wire.MAX_FRAME}"):
            await wire.read_frame(reader, DECODER)

    asyncio.run(main())
    with pytest.raises(wire.FrameError, match="at most"):
        wire.Frames(DECODER).feed(b"GET / HTTP/1.1\r\n")
    with pytest.raises(wire.FrameError, match="send less"):
        wire.pack(Answer(id="1", ok=True, text="x" * (wire.MAX_FRAME + 1)))


def test_the_longest_document_passes():
    longest = Answer(id="1", ok=True, text="x" * (wire.MAX_FRAME - 100))
    assert wire.Frames(DECODER).feed(wire.pack(longest)) == [longest]


@pytest.mark.parametrize("length", [2, 10])
def test_an_end_inside_a_frame_is_no_end_between_frames(length):
    async def main():
        with pytest.raises(ConnectionError, match="ended"):
            await wire.read_frame(await streams(wire.pack(STATUS)[:length]), DECODER)
        assert await wire.read_frame(await streams(b""), DECODER) is None

    asyncio.run(main())


def test_other_kinds_of_documents_have_their_own_decoder():
    class Note(msgspec.Struct, tag="note"):
        text: str

    assert wire.Frames(Note).feed(wire.pack(Note("hello"))) == [Note("hello")]
    with pytest.raises(wire.FrameError, match="no document"):
        wire.Frames(Note).feed(wire.pack(STATUS))
