"""Frames: what goes in comes out, in any pieces; what is no frame is named."""

import asyncio
import contextlib
import socket
import struct
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.coord import wire
from melodeon.coord.messages import Answer, Ask, Message, Notice, Orders, Phase, Report, Status, WorkerOrder
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
MESSAGES: list[Message] = [
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
        with far:
            blocking = wire.FrameSocket(far, wire.MESSAGES)

            def echo():
                while (message := blocking.read_frame(20)) is not None:
                    blocking.write_frame(message, 20)
                blocking.close()

            thread = threading.Thread(target=echo)
            thread.start()
            for message in MESSAGES:
                await wire.write_frame(writer, message)
                assert await wire.read_frame(reader) == message
            writer.write_eof()
            assert await wire.read_frame(reader) is None
            await asyncio.to_thread(thread.join, 20)
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())


@given(st.lists(st.sampled_from(MESSAGES), max_size=6), st.lists(st.integers(1, 200), max_size=30))
def test_bytes_may_arrive_in_any_pieces(messages, sizes):
    data = b"".join(wire.pack(message) for message in messages)
    frames, found = wire.Frames(wire.MESSAGES), []
    for size in [*sizes, len(data)]:
        found += frames.feed(data[:size])
        data = data[size:]
    assert found == messages
    assert not frames.inside


@given(st.binary(max_size=40))
def test_any_bytes_give_messages_or_a_frame_error(data):
    async def read():
        reader = await streams(data)
        while await wire.read_frame(reader) is not None:
            pass

    with contextlib.suppress(wire.FrameError, ConnectionError):
        asyncio.run(read())
    with contextlib.suppress(wire.FrameError):
        wire.Frames(wire.MESSAGES).feed(data)


def test_a_length_over_the_limit_is_refused_before_anything_is_read():
    async def main():
        reader = await streams(struct.pack(">I", wire.MAX_FRAME + 1))
        with pytest.raises(wire.FrameError, match=f"{wire.MAX_FRAME + 1} bytes: at most {wire.MAX_FRAME}"):
            await wire.read_frame(reader)

    asyncio.run(main())
    with pytest.raises(wire.FrameError, match="at most"):
        wire.Frames(wire.MESSAGES).feed(b"GET / HTTP/1.1\r\n")
    with pytest.raises(wire.FrameError, match="send less"):
        wire.pack(Answer(id="1", ok=True, text="x" * (wire.MAX_FRAME + 1)))


def test_the_longest_document_passes():
    near, far = socket.socketpair()
    with near, far:
        text = "x" * (wire.MAX_FRAME - 100)
        sender = threading.Thread(target=wire.send, args=(near, Answer(id="1", ok=True, text=text)))
        sender.start()
        answer = wire.FrameSocket(far, wire.MESSAGES).read_frame(20)
        sender.join(20)
    assert isinstance(answer, Answer)
    assert answer.text == text


@pytest.mark.parametrize("length", [2, 10])
def test_an_end_inside_a_frame_is_no_end_between_frames(length):
    cut = wire.pack(STATUS)[:length]

    async def main():
        with pytest.raises(ConnectionError, match="ended"):
            await wire.read_frame(await streams(cut))
        assert await wire.read_frame(await streams(b"")) is None

    asyncio.run(main())
    near, far = socket.socketpair()
    with near, far:
        near.sendall(cut)
        near.close()
        with pytest.raises(ConnectionError, match="inside a frame"):
            wire.FrameSocket(far, wire.MESSAGES).read_frame(20)


def test_a_read_that_times_out_loses_nothing():
    near, far = socket.socketpair()
    with near, far:
        reader = wire.FrameSocket(far, wire.MESSAGES)
        data = wire.pack(STATUS) + wire.pack(MESSAGES[1])
        near.sendall(data[:7])
        with pytest.raises(TimeoutError):
            reader.read_frame(0)
        near.sendall(data[7:])
        assert reader.read_frame(20) == STATUS
        assert reader.read_frame(0) == MESSAGES[1]
        with pytest.raises(TimeoutError):
            reader.read_frame(0)


def test_a_write_to_somebody_who_does_not_read_times_out():
    near, far = socket.socketpair()
    with near, far, pytest.raises(TimeoutError):
        wire.FrameSocket(near, wire.MESSAGES).write_frame(Answer(id="1", ok=True, text="x" * (8 << 20)), 0.05)


def test_other_kinds_of_documents_have_their_own_decoder():
    class Note(msgspec.Struct, tag="note"):
        text: str

    assert wire.Frames(Note).feed(wire.pack(Note("hello"))) == [Note("hello")]
    with pytest.raises(wire.FrameError, match="no document"):
        wire.Frames(Note).feed(wire.pack(STATUS))
