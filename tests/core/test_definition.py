from melodeon.core.definition import Definition, unlike


def test_equal_definitions_have_no_differences() -> None:
    assert Definition({"threads": 1, "order": "tree"}).differences(Definition({"order": "tree", "threads": 1})) == []


def test_differences_name_the_fact_and_both_sides() -> None:
    there = Definition({"threads": 1, "order": "tree"})
    here = Definition({"threads": 2, "order": "tree", "seed": 0})
    assert there.differences(here) == ["threads is 1 there and 2 here", "seed is None there and 0 here"]


def test_marks_are_equal_where_the_facts_are_and_name_those_that_are_not() -> None:
    one = Definition({"threads": 1, "order": "tree", "seed": None})
    assert one.marks() == Definition({"seed": None, "order": "tree", "threads": 1}).marks()
    assert unlike(one.marks(), Definition({"threads": "1", "order": "tree", "loader0": "x"}).marks()) == [
        "loader0", "seed", "threads",
    ]  # fmt: skip
