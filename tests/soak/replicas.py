"""Histories on three replicas: `python -m tests.soak.replicas --histories 2000`.

Each is decided by its seed. The first one that leaves two replicas unequal is printed with the line
that repeats it.
"""

from __future__ import annotations

import argparse
import sys

from tests.property.topics.core.replicas import History


def main() -> int:
    """Run histories from a seed on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    wanted = parser.parse_args()
    compared = looked_through = 0
    for seed in range(wanted.first, wanted.first + wanted.histories):
        history = History(seed)
        try:
            history.run(wanted.steps)
        except Exception as error:
            print(f"History({seed}).run({wanted.steps}): {error!r}")
            raise
        compared += history.compared
        looked_through += history.looked_through
    print(
        f"{wanted.histories} histories, {compared} comparisons of three replicas, all equal; "
        f"{looked_through} reads saw less than was applied"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
