"""The worker's half of the protocol, without IO: takes notices, and says what the main thread has to do about views.

    cold --begin(view)--> entering --enter()--> member --begin(next)--> entering ...
                                                      `-begin(next), no seat--> leaving --released--> out

A planned view is prepared beside the running one, armed, and begun at the boundary that the step's header exchange
agrees on. An unplanned one is begun at once: the step in progress is given up, which is free before its commit.
Generations only grow: a lower one is refused wherever it comes from. Thread-safe for one writer of notices and one
reader, since each field is replaced whole.
"""

from melodeon.coord.messages import Notice
from melodeon.core.view import View


class Member:
    """What one worker was told, and how far it has followed."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.number = 0
        """The newest notice that was taken."""
        self.view: View | None = None
        """The newest view that it was told of."""
        self.current = 0
        """The generation of the group that it works in, enters or has left by."""
        self.entered = 0
        """The newest generation that it has entered: it trained or could train in it."""
        self.prepared = 0
        """The newest generation whose group it has connected."""
        self.released = False
        self.stop = False
        self.checkpoint = 0
        """The newest checkpoint that was asked for."""

    def on_notice(self, notice: Notice) -> bool:
        """Take a notice if it is newer than the last; False if it was not."""
        if notice.number <= self.number:
            return False
        if notice.view is not None and (self.view is None or notice.view.generation > self.view.generation):
            self.view = notice.view
        self.released = self.released or notice.released
        self.stop = self.stop or notice.stop
        self.checkpoint = max(self.checkpoint, notice.checkpoint)
        self.number = notice.number
        return True

    @property
    def to_prepare(self) -> View | None:
        """The view whose group is to be connected now, in the background if it is planned and others train on."""
        view = self.view
        if view is None or view.generation <= max(self.current, self.prepared) or not self._seated(view):
            return None
        return view

    def prepare(self, generation: int) -> bool:
        """The group of `generation` is connected; False if a newer view has made it useless."""
        if self.view is None or generation != self.view.generation or generation <= self.prepared:
            return False
        self.prepared = generation
        return True

    @property
    def armed(self) -> int:
        """What to put into the step's header: the next generation once this worker is ready for it, else its own."""
        view = self.view
        if view is None or not view.planned or view.generation <= self.current:
            return self.current
        # A leaver has nothing to connect.
        ready = view.generation == self.prepared or not self._seated(view)
        return view.generation if ready else self.current

    @property
    def leaves_next(self) -> bool:
        """It is armed for a view that has no seat for it."""
        return self.view is not None and self.armed > self.current and not self._seated(self.view)

    @property
    def give_up(self) -> View | None:
        """The view to begin at once, dropping the step or the entry in progress; None: go on."""
        view = self.view
        if view is None or view.generation <= self.current or not self._seated(view):
            return None
        # Whoever has never entered a view has no step to finish first; a leaver that is asked back has none either.
        return view if not view.planned or self.entered == 0 or self.leaving else None

    def agreed(self, lowest: int) -> View | None:
        """After a commit, with the lowest armed generation of the group: the view to switch to at this boundary."""
        view = self.view
        if view is None or lowest <= self.current:
            return None
        # A newer, unplanned view may have come since the header; `give_up` is then what counts.
        return view if view.generation == lowest else None

    def begin(self, generation: int) -> None:
        """Leave the old group for the newest view; refuses anything but that."""
        assert self.view is not None, "no view to begin"
        assert generation == self.view.generation > self.current, f"begin {generation} in {self.current}"
        self.current = generation

    def enter(self) -> None:
        """The state is agreed on and held: this worker is a member of the current generation."""
        assert not self.leaving, f"worker {self.worker} has no seat in generation {self.current}"
        self.entered = self.current

    @property
    def leaving(self) -> bool:
        """It has switched to a view without a seat for it, and holds its state until it is released."""
        view = self.view
        return view is not None and view.generation == self.current and not self._seated(view)

    @property
    def may_end(self) -> bool:
        """Released: nobody needs its state any more."""
        return self.released

    def _seated(self, view: View) -> bool:
        return view.rank_of(self.worker) is not None
