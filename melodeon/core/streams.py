"""Seeds of random streams, derived by hashing a path of integers and words.

Streams of different paths are independent; a path's stream does not depend on who computes it, where or when. That
is what lets a virtual worker carry no random state of its own from step to step.
"""

import hashlib


def derive(seed: int, *path: int | str) -> int:
    """A 64-bit seed for the stream named by `path` under `seed`."""
    text = "\x1f".join([f"{seed:d}", *(f"{part:d}" if isinstance(part, int) else f"s{part}" for part in path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
