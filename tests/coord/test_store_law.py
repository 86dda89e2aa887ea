"""One behaviour, two stores: each answers any sequence of operations as a dictionary with numbers would."""

import itertools
from contextlib import aclosing
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from melodeon.coord.store import Change, Conflict, Entry, Fence, Fenced, LeaseLost, Store, StoreError
from tests.coord.sites import run, take

NAMES = st.sampled_from(["a", "a/1", "b"])
SLOTS = st.integers(0, 1)
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.binary(max_size=3), st.none() | SLOTS),
    st.tuples(st.just("expect"), NAMES, st.binary(max_size=3), st.integers(-1, 1)),
    st.tuples(st.just("fence"), NAMES, NAMES, st.integers(-1, 1)),
    st.tuples(st.just("delete"), NAMES, st.none() | NAMES),
    st.tuples(st.just("revoke"), SLOTS),
    st.tuples(st.just("list"), st.sampled_from(["", "a", "a/", "c"])),
)


class Model:
    """The same store in the fewest words: values, two numbers each, and who holds what."""

    def __init__(self, revision: int, prefix: str, leases: list[int]) -> None:
        self.revision, self.prefix, self.leases = revision, prefix, leases
        self.entries: dict[str, Entry] = {}
        self.held: dict[str, int] = {}
        self.ended: set[int] = set()
        self.history: list[Change] = []

    def write(self, key: str, value: bytes, slot: int | None = None) -> int:
        if slot in self.ended:
            raise LeaseLost
        self.revision += 1
        old = self.entries.get(key)
        self.entries[key] = Entry(value, old.created if old else self.revision, self.revision)
        self.held.pop(key, None)
        if slot is not None:
            self.held[key] = slot
        self.history.append(Change(key, self.entries[key], self.revision))
        return self.revision

    def remove(self, keys: list[str]) -> bool:
        self.revision += bool(keys)
        for key in sorted(keys):
            del self.entries[key]
            self.held.pop(key, None)
            self.history.append(Change(key, None, self.revision))
        return bool(keys)

    def created(self, key: str) -> int:
        return self.entries[key].created if key in self.entries else 0

    def modified(self, key: str) -> int:
        return self.entries[key].modified if key in self.entries else 0

    def expected(self, operation: tuple[Any, ...]) -> Any:
        """What the store must answer, and the change that makes here."""
        match operation:
            case "put", name, value, slot:
                return self.write(self.prefix + name, value, slot)
            case "expect", name, value, off:
                if off and max(0, self.modified(self.prefix + name) + off) != self.modified(self.prefix + name):
                    raise Conflict
                return self.write(self.prefix + name, value)
            case "fence", name, guard, off:
                if off or not self.created(self.prefix + guard):
                    raise Fenced
                return self.write(self.prefix + name, b"fenced")
            case "delete", name, guard:
                if guard is not None and not self.created(self.prefix + guard):
                    raise Fenced
                return self.remove([self.prefix + name] if self.prefix + name in self.entries else [])
            case "revoke", slot:
                self.ended.add(slot)
                self.remove([key for key, holder in self.held.items() if holder == slot])
                return None
            case "list", name:
                return {key: entry for key, entry in self.entries.items() if key.startswith(self.prefix + name)}
        raise AssertionError(operation)

    async def asked(self, store: Store, operation: tuple[Any, ...]) -> Any:
        """The same of the store itself."""
        match operation:
            case "put", name, value, slot:
                return await store.put(self.prefix + name, value, lease=None if slot is None else self.leases[slot])
            case "expect", name, value, off:
                seen = max(0, self.modified(self.prefix + name) + off)
                return await store.put(self.prefix + name, value, expect=seen)
            case "fence", name, guard, off:
                fence = Fence(self.prefix + guard, (self.created(self.prefix + guard) or 1) + off)
                return await store.put(self.prefix + name, b"fenced", fence=fence)
            case "delete", name, guard:
                key = None if guard is None else self.prefix + guard
                fence = None if key is None else Fence(key, self.created(key) or 1)
                return await store.delete(self.prefix + name, fence=fence)
            case "revoke", slot:
                return await store.revoke(self.leases[slot])
            case "list", name:
                return await store.list(self.prefix + name)
        raise AssertionError(operation)


EXAMPLES = itertools.count()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(OPERATIONS, max_size=25))
def test_any_sequence_of_operations_answers_as_the_model_does(site, operations):
    async def scenario(s, store):
        prefix = s.key(f"{next(EXAMPLES)}/")
        leases = [await store.grant(60), await store.grant(60)]
        model = Model((await store.list(prefix)).revision, prefix, leases)
        start = model.revision
        for operation in operations:
            asking = model.asked(store, operation)  # reads the model before the operation changes it
            answer: Any
            try:
                answer = await asking
            except StoreError as error:
                answer = type(error)
            try:
                expected = model.expected(operation)
            except StoreError as error:
                expected = type(error)
            assert answer == expected, operation
        assert await store.list(prefix) == model.entries
        async with aclosing(store.watch(prefix, start)) as changes:
            assert await take(changes, len(model.history)) == model.history
        for lease in leases:
            await store.revoke(lease)

    run(scenario, site)
