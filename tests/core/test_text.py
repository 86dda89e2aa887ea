from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.text import harmless, plain


@given(st.text())
def test_nothing_is_left_that_a_terminal_would_obey(text: str) -> None:
    assert harmless(text).isprintable()
    assert plain(text).isprintable()


@given(st.text(st.characters(exclude_categories=["C", "Z"])))
def test_plain_words_stay_as_they_are(text: str) -> None:
    assert harmless(text) == plain(text) == text


def test_sequences_are_left_out_whole() -> None:
    assert harmless("\x1b[31mred\x1b[0m \x1b]0;title\x07and \x1b]8;;http://x\x1b\\link\x1b(B\x1bc") == "red and link"
    assert harmless("\x1bPdata\x1b\\shown") == "shown"
    assert harmless("a\tb\x07c\u202ed\x9b31m") == "a       b\ufffdc\ufffdd\ufffd31m"
    assert plain("two\nlines\x1b") == "two lines\ufffd"
