"""Every seeded bug, of the protocol and of the running system, by `python -m tests.bugs`: exit 1 if one survives.

For some of them, name them to `python -m tests.coord.seeded_bugs` or `python -m tests.live.bugs`.
"""

import sys

from tests.coord import seeded_bugs
from tests.live import bugs


def main() -> int:
    survived = [module for module in (seeded_bugs, bugs) if module.main()]
    print(f"{len(seeded_bugs.BUGS) + len(bugs.BUGS)} bugs; {'some survived' if survived else 'every one was caught'}")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
