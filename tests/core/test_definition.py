from melodeon.core.definition import Definition


def test_equal_definitions_have_no_differences() -> None:
    assert Definition({"threads": 1, "order": "tree"}).differences(Definition({"order": "tree", "threads": 1})) == []


def test_differences_name_the_fact_and_both_sides() -> None:
    there = Definition({"threads": 1, "order": "tree"})
    here = Definition({"threads": 2, "order": "tree", "seed": 0})
    assert there.differences(here) == ["threads is 1 there and 2 here", "seed is None there and 0 here"]
