import itertools

from hypothesis import given
from hypothesis import strategies as st

from melodeon.backends import streams
from melodeon.backends.streams import Lines


@given(st.binary(max_size=60), st.lists(st.integers(0, 60)))
def test_nothing_is_lost_and_lines_stay_whole(data: bytes, cuts: list[int]) -> None:
    seen: list[bytes] = []
    lines = Lines(seen.append)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in itertools.pairwise(edges):
        lines.feed(data[start:stop])
    assert all(piece[-1:] in (b"\n", b"\r") for piece in seen)
    lines.close()
    assert b"".join(seen) == data


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    seen: list[bytes] = []
    lines = Lines(seen.append)
    lines.feed(b"x" * streams.LONGEST)
    assert seen == [b"x" * streams.LONGEST]
