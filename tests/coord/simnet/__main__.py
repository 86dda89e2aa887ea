"""Run seeds, or replay one: `python -m tests.coord.simnet --seed 17 --trace`, `--first 0 --count 1000`."""

import argparse
import sys
import time
import traceback

from tests.coord.simnet.checks import Violation
from tests.coord.simnet.world import World


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    if options.count < 1:
        parser.error(f"--count {options.count} tries no seed: give at least 1")
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.count)
    failed = 0
    begin = time.process_time()
    for seed in seeds:
        world = World(seed, tracing=options.trace, thorough=seed % 10 == 0)
        try:
            world.run()
        except Exception as problem:  # noqa: BLE001 - whatever went wrong, the seed is what to print
            failed += 1
            if options.trace:
                print("\n".join(world.lines))
            if not isinstance(problem, Violation):
                traceback.print_exc()
            print(f"seed {seed}: {problem!r}\n  replay: python -m tests.coord.simnet --seed {seed} --trace", flush=True)
        else:
            if options.trace:
                print(f"{world.plan}\n" + "\n".join(world.lines))
    spent = time.process_time() - begin
    print(f"{len(seeds)} seeds, {failed} failed, {spent:.1f} s, {1000 * spent / len(seeds):.2f} ms each")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
