"""Every error a person can cause or meet, in one small tree.

    MelodeonError                    1  something failed
    |-- UsageError                   2  a wrong flag, argument, script or loop
    |   |-- DefinitionError          2  what defines the bits differs from what it must equal
    |   `-- MissingTorch             2  training was asked for and PyTorch is not installed
    |-- Rejected                     3  a job was not admitted to the cluster
    |-- NotFound                     4  a named run, file or folder is not there
    |-- Unreachable                  5  a job or a store is there, but nobody answers
    |-- NotBitwise                   6  two runs that must agree do not
    |-- Cancelled                    7  stopped on request
    |-- CheckpointError              1  no checkpoint could be written or read
    |-- NonFiniteLoss                1  a loss is NaN or infinite and the policy is to stop
    `-- WorkerLost                   1  a worker of the job is gone

The number is the exit code. A message is one sentence with the value, the rule and the fix.
"""


class MelodeonError(Exception):
    """Base of the tree; `exit_code` is what a process that ends with it returns."""

    exit_code = 1


class UsageError(MelodeonError):
    """A wrong flag, argument, script or loop."""

    exit_code = 2


class DefinitionError(UsageError):
    """What defines the bits differs from what it must equal."""


class MissingTorch(UsageError):
    """Training was asked for and PyTorch is not installed."""

    def __init__(self, what: str = "training") -> None:
        super().__init__(f"{what} needs PyTorch, which is not installed here: pip install 'melodeon[train]'")


class Rejected(MelodeonError):
    """A job was not admitted to the cluster."""

    exit_code = 3


class NotFound(MelodeonError):
    """A named run, file or folder is not there."""

    exit_code = 4


class Unreachable(MelodeonError):
    """A job or a store is there, but nobody answers."""

    exit_code = 5


class NotBitwise(MelodeonError):
    """Two runs that must agree do not."""

    exit_code = 6


class Cancelled(MelodeonError):
    """Stopped on request."""

    exit_code = 7


class CheckpointError(MelodeonError):
    """No checkpoint could be written or read."""


class NonFiniteLoss(MelodeonError):
    """A loss is NaN or infinite and the policy is to stop."""


class WorkerLost(MelodeonError):
    """A worker of the job is gone."""


def sentence_of(worker: int, kind: str, text: str) -> str:
    """What is said of the error that ended a worker: one of this tree is a sentence already, a script's own exception
    needs its type to be understood.
    """
    if text and isinstance(found := globals().get(kind), type) and issubclass(found, MelodeonError):
        return text
    said = "" if text in ("", kind) else f": {text}"
    return f"worker {worker} failed: {kind}{said}"
