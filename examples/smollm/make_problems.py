"""Write the problems of the example: small word problems of one addition or subtraction.

    python examples/smollm/make_problems.py

`problems.jsonl` (training) and `heldout.jsonl` have rows {"problem_id", "problem", "answer"}; no reward source but
`truth` reads the answers of the first. No pair of numbers under the same operation is in both files.
"""

import argparse
import json
import random
from pathlib import Path

TRAINING, HELD_OUT = 160, 32
NAMES = ("Tom", "Anna", "Ben", "Lucy", "Sam", "Mia", "Leo", "Emma")
THINGS = ("apples", "pens", "books", "coins", "shells", "cards", "stamps", "eggs")
SMALLEST, LARGEST = 2, 15


def row(a: int, b: int, rng: random.Random) -> str:
    """A problem about a + b, or about a - b if `b` is negative."""
    who, what = rng.choice(NAMES), rng.choice(THINGS)
    change = f"buys {b} more" if b > 0 else f"gives away {-b}"
    text = f"{who} has {a} {what} and {change}. How many {what} does {who} have now?"
    name = f"{'add' if b > 0 else 'take'}-{a:02d}-{abs(b):02d}"
    return json.dumps({"problem_id": name, "problem": text, "answer": str(a + b)}) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write to")
    parser.add_argument("--seed", type=int, default=7, help="seed of the draw (default: %(default)s)")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    numbers = range(SMALLEST, LARGEST + 1)
    every = [(a, b) for a in numbers for b in numbers] + [(a, -b) for a in numbers for b in numbers if b < a]
    drawn = rng.sample(every, TRAINING + HELD_OUT)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "problems.jsonl").write_text("".join(row(a, b, rng) for a, b in drawn[:TRAINING]))
    (args.out / "heldout.jsonl").write_text("".join(row(a, b, rng) for a, b in drawn[TRAINING:]))


if __name__ == "__main__":
    main()
