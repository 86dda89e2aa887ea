from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.streams import derive

paths = st.lists(st.one_of(st.integers(-5, 10**6), st.text("abc1\x1f", max_size=3)), max_size=4).map(tuple)


def test_seeds_never_change() -> None:
    # Written down once: a different value here changes the bits of every run.
    assert derive(0) == 8493733112532773764
    assert derive(0, "data", 1, 2, 3) == 16606342160284494339


@given(st.integers(0, 2**64), paths)
def test_seeds_are_64_bits_and_a_function_of_the_path(seed: int, path: tuple[int | str, ...]) -> None:
    assert 0 <= derive(seed, *path) < 2**64
    assert derive(seed, *path) == derive(seed, *path)


def test_neighbours_and_look_alikes_differ() -> None:
    seeds = [
        derive(0, "a", 1),
        derive(0, "a", 2),
        derive(1, "a", 1),
        derive(0, "a", "1"),
        derive(0, "a1"),
        derive(0, 1),
    ]
    assert len(set(seeds)) == len(seeds)
