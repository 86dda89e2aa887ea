import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.errors import UsageError
from melodeon.core.launch import VARIABLE, Launch


@given(
    st.builds(
        Launch,
        worker=st.integers(0, 9),
        num_workers=st.integers(1, 9),
        counts=st.none() | st.lists(st.integers(1, 9)).map(tuple),
        run_dir=st.none() | st.text(),
        threads=st.none() | st.integers(1, 8),
        record_ops=st.booleans(),
        virtual_workers=st.none() | st.integers(1, 64),
        until=st.none() | st.just("loss < 0.1"),
        max_epochs=st.none() | st.integers(1, 9),
        checkpoint_every=st.none() | st.integers(1, 9),
        pin=st.booleans(),
        batch_history=st.none() | st.lists(st.tuples(st.integers(0, 99), st.integers(1, 8))).map(tuple),
    )
)
def test_it_goes_through_the_environment_unchanged(launch: Launch) -> None:
    assert Launch.from_env(launch.to_env()) == launch


def test_without_the_variable_there_is_no_launch() -> None:
    assert Launch.from_env({"PATH": "/bin"}) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "[1]", '"x"', "7"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=VARIABLE):
        Launch.from_env({VARIABLE: text})


def test_fields_of_another_version_are_named() -> None:
    with pytest.raises(UsageError, match="colour"):
        Launch.from_env({VARIABLE: json.dumps({"colour": "red"})})
