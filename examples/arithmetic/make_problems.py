"""Write the problems of the nano cohort: two-digit additions to train on, and held-out ones to measure with.

    python examples/arithmetic/make_problems.py

`problems.jsonl` and `heldout.jsonl` have rows {"problem_id", "problem", "answer"}. The answer is there for the `truth`
baseline and for measuring; no other reward source reads it.
`problems.swapped.jsonl` is a second view of the training problems: the same ids, the numbers the other way round.

No sum is in both files, in either order of its numbers. (The base models were *taught* on sums drawn from all of
them, as a real model was pretrained on much of what it is later asked: see `make_models.py`.)
"""

import argparse
import json
import random
from collections.abc import Iterable
from pathlib import Path

TRAINING, HELD_OUT = 1600, 200  # 50 steps x 32 problems, each seen once


def rows(pairs: Iterable[tuple[int, int]], swapped: bool = False) -> str:
    lines = []
    for a, b in pairs:
        first, second = (b, a) if swapped else (a, b)
        row = {"problem_id": f"sum-{a:02d}-{b:02d}", "problem": f"{first:02d}+{second:02d}=", "answer": str(a + b)}
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write to")
    parser.add_argument("--seed", type=int, default=7, help="seed of the draw (default: %(default)s)")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    every = [(a, b) for a in range(100) for b in range(100)]
    held_out = rng.sample(every, HELD_OUT)
    reserved = {frozenset(pair) for pair in held_out}
    training = rng.sample([pair for pair in every if frozenset(pair) not in reserved], TRAINING)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "problems.jsonl").write_text(rows(training))
    (args.out / "problems.swapped.jsonl").write_text(rows(training, swapped=True))
    (args.out / "heldout.jsonl").write_text(rows(held_out))


if __name__ == "__main__":
    main()
