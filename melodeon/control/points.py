"""The named points at which a test kills the controller (see `coord.failpoint`)."""

POINTS = (
    "store.append.begin",
    "store.append.written",
    "store.append.committed",
    "store.snapshot.written",
    "store.snapshot.committed",
    "control.store.before",
    "control.store.after",
    "control.launch.before",
    "control.launch.after",
    "control.place.before",
    "control.place.after",
    "control.profile.before",
    "control.profile.after",
    "control.stop.before",
    "control.stop.after",
    "control.kill.before",
    "control.kill.after",
    "control.skip.before",
    "control.skip.after",
    "control.adopt",
)
"""Every one of them, in the order in which a turn passes them."""
