"""The laws of the replication plan, on drawn topologies."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.replication import Copy, Distance, Links, Place, _Schedule, num_rounds, plan

ONE_HOST = Place(host="a")


@st.composite
def topologies(draw: st.DrawFn) -> tuple[list[int], list[int], dict[int, Place], Links]:
    numbers = draw(st.lists(st.integers(0, 99), min_size=1, max_size=14, unique=True))
    num_holders = draw(st.integers(1, len(numbers)))
    rack_of = draw(st.lists(st.sampled_from("rs"), min_size=5, max_size=5))
    place = {}
    for number in numbers:
        host = draw(st.integers(0, 4))
        place[number] = Place(host=f"h{host}", rack=rack_of[host], bus=draw(st.sampled_from("xy")))
    links = Links(network=draw(st.booleans()), memory=draw(st.booleans()), uplink=draw(st.booleans()))
    return numbers[:num_holders], numbers[num_holders:], place, links


def is_local(copy: Copy) -> bool:
    return copy.distance <= Distance.HOST


@given(topologies())
def test_every_newcomer_is_served_once_by_somebody_who_has_the_state_by_then(drawn) -> None:
    holders, newcomers, place, links = drawn
    copies = plan(holders, newcomers, place, links)
    assert sorted(copy.target for copy in copies) == sorted(newcomers)
    had_in = {copy.target: copy.round for copy in copies} | dict.fromkeys(holders, -1)
    assert all(had_in[copy.source] < copy.round for copy in copies)
    assert all(copy.distance == place[copy.source].distance(place[copy.target]) for copy in copies)


@given(topologies())
def test_no_two_copies_of_a_round_share_a_contended_link(drawn) -> None:
    holders, newcomers, place, links = drawn
    users = defaultdict(set)
    for copy in plan(holders, newcomers, place, links):
        for link in links.used(place[copy.source], place[copy.target]):
            # One source's copies within its host are one write.
            users[copy.round, link].add((copy.source, None if is_local(copy) else copy.target))
    assert all(len(found) == 1 for found in users.values())


@given(topologies())
def test_waiting_for_after_and_for_the_source_keeps_contended_links_apart(drawn) -> None:
    """Rounds are not barriers: what workers do wait for must be enough."""
    holders, newcomers, place, links = drawn
    copies = plan(holders, newcomers, place, links)
    of = {copy.target: copy for copy in copies}
    before: dict[int, set[int]] = {}
    for copy in copies:  # in rounds, so what a copy waits for is known by then
        waits = {*copy.after}
        waits |= {other.target for other in copies if other.source == copy.source and other.round < copy.round}
        waits |= {copy.source} & set(of)
        assert all(of[target].round < copy.round for target in waits)
        before[copy.target] = waits.union(*(before[target] for target in waits))
    for one in copies:
        for other in copies:
            same_write = one.source == other.source and one.round == other.round and is_local(one) and is_local(other)
            if one.target < other.target and not same_write:
                used = [set(links.used(place[copy.source], place[copy.target])) for copy in (one, other)]
                ordered = one.target in before[other.target] or other.target in before[one.target]
                assert ordered or not used[0] & used[1]


@given(topologies())
def test_never_worse_than_one_after_the_other(drawn) -> None:
    holders, newcomers, place, links = drawn
    assert num_rounds(plan(holders, newcomers, place, links)) <= len(newcomers)


@given(topologies())
def test_newcomers_serve_only_where_that_ends_sooner(drawn) -> None:
    holders, newcomers, place, links = drawn
    copies = plan(holders, newcomers, place, links)
    if any(copy.source in newcomers for copy in copies):
        # Round by round, all that the holders could have done at best: one copy a link, and nearest sources only.
        alone = _Schedule(sorted(holders), sorted(newcomers), place, links, relay=False).copies
        assert num_rounds(copies) < num_rounds(alone) or sum(c.distance for c in copies) < sum(
            c.distance for c in alone
        )


@given(topologies())
def test_it_is_a_function_of_the_places_and_not_of_their_order(drawn) -> None:
    holders, newcomers, place, links = drawn
    again = plan(holders[::-1], newcomers[::-1], dict(reversed(place.items())), links)
    assert again == plan(holders, newcomers, place, links)


@given(topologies())
def test_without_contended_links_everyone_copies_from_a_nearest_holder_at_once(drawn) -> None:
    holders, newcomers, place, _ = drawn
    copies = plan(holders, newcomers, place, Links(network=False))
    for copy in copies:
        assert copy.round == 0
        assert copy.after == ()
        assert copy.distance == min(place[holder].distance(place[copy.target]) for holder in holders)


@given(st.integers(1, 5), st.integers(1, 8), st.booleans())
def test_on_one_host_one_writer_serves_all_readers(num_holders: int, num_newcomers: int, memory: bool) -> None:
    workers = range(num_holders + num_newcomers)
    copies = plan(workers[:num_holders], workers[num_holders:], dict.fromkeys(workers, ONE_HOST), Links(memory=memory))
    assert {(copy.source, copy.round) for copy in copies} == {(0, 0)}


@given(st.integers(1, 4), st.integers(0, 40))
def test_hosts_with_the_state_double_each_round(num_holders: int, num_newcomers: int) -> None:
    workers = range(num_holders + num_newcomers)
    place = {worker: Place(host=f"h{worker}") for worker in workers}
    copies = plan(workers[:num_holders], workers[num_holders:], place)
    needed, having = 0, num_holders
    while having < len(workers):
        needed, having = needed + 1, having * 2
    assert num_rounds(copies) == needed


def test_a_new_host_is_reached_once_and_shares_the_state_itself() -> None:
    place = {0: ONE_HOST, **{worker: Place(host="b") for worker in (1, 2, 3)}}
    copies = plan([0], [1, 2, 3], place)
    assert [(copy.source, copy.target, copy.round) for copy in copies] == [(0, 1, 0), (1, 2, 1), (1, 3, 1)]


def test_the_nearest_holder_is_taken_and_then_the_least_loaded() -> None:
    place = {
        0: Place(host="a", rack="r", bus="0"),
        1: Place(host="a", rack="r", bus="1"),
        2: Place(host="b", rack="r"),
        3: Place(host="c", rack="s"),
        10: Place(host="a", rack="r", bus="1"),
        11: Place(host="d", rack="s"),
        12: Place(host="e", rack="r"),
        13: Place(host="f", rack="r"),
    }
    copies = {copy.target: copy for copy in plan([0, 1, 2, 3], [10, 11, 12, 13], place, Links(network=False))}
    assert (copies[10].source, copies[10].distance) == (1, Distance.BUS)
    assert (copies[11].source, copies[11].distance) == (3, Distance.RACK)
    assert (copies[12].source, copies[13].source) == (0, 2)


def test_copies_over_one_card_go_in_turn_and_say_whom_they_wait_for() -> None:
    place = {0: ONE_HOST, 1: ONE_HOST, 2: Place(host="b"), 3: Place(host="c")}
    first, second = plan([0, 1], [2, 3], place, Links())
    assert (first.round, second.round) == (0, 1)
    assert (first.source, first.after) == (0, ())
    assert (second.source, second.after) == (1, (2,))


def test_nothing_to_copy_is_an_empty_plan() -> None:
    assert plan([1, 2], [], {1: ONE_HOST, 2: ONE_HOST}) == ()
    assert plan([], [], {}) == ()
