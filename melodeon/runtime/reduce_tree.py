"""`order="tree"`: gradients folded in place into maximal aligned subtrees as virtual workers finish.

A binary counter: after virtual rank v the stack holds the nodes that cover the ranks done so far, at most log2(V) + 1
sets of gradients. Neighbours (2k, 2k+1) share `.grad`: autograd's own in-place addition is the tree's leaf pair, so
half of the additions cost nothing extra. A missing gradient counts as zeros, wherever the additions happen. A hook of
the script on `.grad` must see one virtual worker's gradient, whoever its neighbour is: where there is one, none share.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from melodeon.core import tree
from melodeon.core.assignment import Assignment
from melodeon.core.errors import UsageError
from melodeon.runtime.buckets import tree_buckets
from melodeon.runtime.exchange import Exchange, open_exchange
from melodeon.runtime.folds import TreeFold
from melodeon.runtime.group import Group
from melodeon.runtime.guard import Grads, Marks, grads_of
from melodeon.runtime.reduce import Header, Reducer


@dataclass(slots=True)
class Partial:
    """The sum over one node; `grads` is None while it still lies in the parameters' `.grad`."""

    span: tree.Span
    grads: Grads | None


class TreeReducer(Reducer):
    """Sums in the fixed binary tree over virtual ranks."""

    def __init__(
        self,
        params: Sequence[torch.nn.Parameter],
        names: Sequence[str],
        group: Group,
        assignment: Assignment,
        *,
        exchange: Exchange | None = None,
    ) -> None:
        super().__init__(params, names, group, assignment)
        self._virtual_workers = assignment.virtual_workers
        self._stack: list[Partial] = []
        self._marks: Marks | None = None
        """The left gradients of a pair and their versions, while the right ones are being added to them."""
        self._shares = True
        """Whether neighbours may share `.grad` in this step."""
        self._used = [False] * len(self.params)
        if group.size > 1:
            self._take(exchange or tree_exchange(params, group, assignment))

    @property
    def root_scale(self) -> float:
        """Backward starts from 1/V: no pass over the gradients is spent on taking the mean."""
        return 1.0 / self._virtual_workers

    def before(self, rank: int, marks: Marks, *, first: bool, final: bool) -> None:
        """Leave the left neighbour's gradients in `.grad` for autograd to add to, or lay them aside."""
        if first and rank == self.ranks[0]:
            self._shares = not self._go_last()
        if first and self._stack and self._stack[-1].grads is None:
            left = self._stack[-1].span
            pair = left == (rank - 1, rank) and tree.mergeable(left, (rank, rank + 1), self._virtual_workers)
            if pair and final and self._shares:
                self._marks = marks
            else:
                self._stack[-1].grads = marks[0]
                self.drop_gradients()
        self._listen(sending=final and bool(self._lanes) and rank == self.ranks[-1])

    def after(self, rank: int) -> Grads | None:
        """Fold the virtual worker's gradients in."""
        if self._lanes and rank == self.ranks[-1]:
            self._launch_rest()
            return None
        rights, merges = self._arriving(range(len(self.params))), self._merges(rank)
        paired = self._marks is not None
        self._marks = None
        if paired:
            self._stack.pop()
        start = rank - 1 if paired else rank
        if not merges:
            self._stack.append(Partial((start, rank + 1), None))
            return rights
        levels: list[Grads] = []
        for _ in range(merges):
            left = self._stack.pop()
            assert left.grads is not None
            levels.append(left.grads)
            start = left.span[0]
        self._stack.append(Partial((start, rank + 1), _add_up(levels, rights)))
        self.drop_gradients()
        return None

    def abandon(self) -> None:
        """Drop the step's sums."""
        self._stack.clear()
        self._marks = None
        self._armed = False
        self.drop_gradients()

    def _merges(self, rank: int) -> int:
        """Additions that are left to do for `rank`, after the one that autograd did for a pair."""
        spans = [partial.span for partial in self._stack]
        return tree.carries(spans, rank, self._virtual_workers) - (self._marks is not None)

    def _arriving(self, indices: Sequence[int]) -> Grads:
        """What lies in `.grad`, with one-sided pairs made what `g + 0` is."""
        grads = grads_of([self.params[index] for index in indices])
        if self._marks is not None:
            lefts, versions = self._marks
            for index, grad in zip(indices, grads, strict=True):
                left = lefts[index]
                if left is not grad or grad is None or grad._version == versions[index]:
                    self._mend_pair(index, left, grad)
        return grads

    def _mend_pair(self, index: int, left: torch.Tensor | None, grad: torch.Tensor | None) -> None:
        """One of a pair's two gradients is missing: add the zeros that it stands for."""
        if left is not None and grad is not left:
            raise UsageError(
                f"the gradient of {self.names[index]!r} was replaced between two virtual workers: "
                "clear gradients with optimizer.zero_grad() of a wrapped optimizer"
            )
        if grad is not None:
            with torch.no_grad():
                grad.add_(0.0)

    # -- the exchange between workers --------------------------------------------------------------------------------

    def _fill(self, number: int, rows: Sequence[torch.Tensor]) -> None:
        bucket = self._buckets[number]
        indices = bucket.indices
        rights, merges = self._arriving(indices), self._merges(self.ranks[-1])
        waiting = self._stack[:-1] if self._marks is not None else self._stack
        keep = len(waiting) - merges
        views = [slot.view(rows[keep]) for slot in bucket.slots]
        for depth, partial in enumerate(reversed(waiting[keep:])):
            assert partial.grads is not None
            lefts = [partial.grads[index] for index in indices]
            rights = _add(lefts, rights, views if depth == merges - 1 else None)
        if not merges:
            _copy(views, rights)
        for row, partial in zip(rows, waiting[:keep], strict=False):
            assert partial.grads is not None
            _copy([slot.view(row) for slot in bucket.slots], [partial.grads[index] for index in indices])
        for position, index in enumerate(indices):
            below = any(p.grads is not None and p.grads[index] is not None for p in waiting[:keep])
            self._used[index] = below or rights[position] is not None
            self.params[index].grad = None

    def _locally_used(self) -> list[bool]:
        if self._lanes:
            return self._used
        (root,) = self._stack
        grads = root.grads if root.grads is not None else [param.grad for param in self.params]
        return [grad is not None for grad in grads]

    def _deliver(self, header: Header) -> None:
        if self._lanes:
            super()._deliver(header)
        elif (grads := self._stack[0].grads) is not None:
            for param, grad in zip(self.params, grads, strict=True):
                param.grad = grad
        self._stack.clear()
        self._marks = None


def tree_exchange(params: Sequence[torch.nn.Parameter], group: Group, assignment: Assignment) -> Exchange:
    """Open what carries these parameters' gradients between the workers of a view; alone, nothing does."""
    if group.size == 1:
        return Exchange()
    virtual_workers = assignment.virtual_workers
    covers = [tree.cover(ranks.start, ranks.stop, virtual_workers) for ranks in assignment.ranges()]
    spans = [span for cover in covers for span in cover]
    fold = TreeFold(spans, virtual_workers)
    counts = [len(cover) for cover in covers]
    return open_exchange(group, tree_buckets(params), counts, lambda _: fold)


def _add_up(levels: Sequence[Grads], rights: Grads) -> Grads:
    """Add gradients to those of the nodes on their left, level by level, in place."""
    if len(levels) == 1 or any(grad is not None and grad.is_cuda for grad in rights):
        for lefts in levels:
            rights = _add(lefts, rights)
        return rights
    # A parameter at a time: what one level has written is in the cache when the next reads it. On a GPU every call is
    # a launch, which costs more than that saves.
    sums: Grads = []
    with torch.no_grad():
        for index, right in enumerate(rights):
            total = right
            for lefts in levels:
                total = _add_one(lefts[index], total, None)
            sums.append(total)
    return sums


def _add(lefts: Grads, rights: Grads, into: Sequence[torch.Tensor] | None = None) -> Grads:
    """`left + right` for each parameter, in place on the left or into `into`; a missing side counts as zeros."""
    with torch.no_grad():
        if into is None and all(g is not None for g in lefts) and all(g is not None for g in rights):
            torch._foreach_add_(lefts, rights)  # type: ignore[arg-type]  # no None is left
            return lefts
        sums: Grads = []
        for position, (left, right) in enumerate(zip(lefts, rights, strict=True)):
            target = None if into is None else into[position]
            sums.append(_add_one(left, right, target))
        return sums


def _add_one(left: torch.Tensor | None, right: torch.Tensor | None, target: torch.Tensor | None) -> torch.Tensor | None:
    if left is None and right is None:
        if target is not None:
            target.zero_()
        return None
    if left is None or right is None:
        present = left if left is not None else right
        assert present is not None
        return torch.add(present, 0.0, out=target if target is not None else present)
    return torch.add(left, right, out=target if target is not None else left)


def _copy(views: Sequence[torch.Tensor], grads: Grads) -> None:
    for view, grad in zip(views, grads, strict=True):
        if grad is None:
            view.zero_()
        else:
            view.copy_(grad)
