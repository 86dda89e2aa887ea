"""Pages as a strict browser reads them: what they say, and whether they keep to the policy that only our files run."""

from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open, f"</{tag}> closes nothing"
            assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data

    def find(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        return [
            found
            for name, found in self.tags
            if name == tag and all(found.get(key.rstrip("_").replace("_", "-")) == v for key, v in attributes.items())
        ]


def read(html: str) -> Page:
    """A page that is well formed, keeps to the policy, and can be used without seeing it."""
    page = Page(html)
    assert not page.open, f"{page.open} stay open"
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids)), sorted(one for one in set(ids) if ids.count(one) > 1)
    labelled = {attrs.get("for") for tag, attrs in page.tags if tag == "label"}
    for tag, attrs in page.tags:
        assert tag != "style", "a style in the page"
        assert tag != "script" or attrs.get("src", "").startswith("/static/"), "a script in the page"
        for name, value in attrs.items():
            assert name != "style", f"<{tag}> has a style of its own"
            assert not name.startswith(("on", "hx-on")), f"<{tag} {name}>"
            if name in ("src", "href", "action", "hx-get", "hx-post"):
                assert value.startswith(("/", "#")), f"{value} is elsewhere"
                assert not value.startswith("//"), f"{value} is elsewhere"
        if tag in ("input", "select", "textarea") and attrs.get("type") not in ("hidden", "checkbox"):
            assert attrs.get("id") in labelled, f"<{tag} {attrs}> has no label"
        if tag == "th":
            assert "scope" in attrs
    return page
