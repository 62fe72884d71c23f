"""`corl audit`: our answer keys beside math-verify."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from corl.answers.audit import AuditError, Referee, audit, sample_pairs

__all__ = ["audit_answers"]


def _groups(file: Path) -> Iterator[list[str]]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry: Any = json.loads(line)
                answers = entry["answers"] if isinstance(entry, dict) else entry
                if not isinstance(answers, list):
                    raise TypeError
                yield [answer for answer in answers if isinstance(answer, str)]
            except (ValueError, KeyError, TypeError) as error:
                raise AuditError(
                    f'{file}:{number}: expected {{"answers": ["1/2", "0.5", ...]}}, the answers to one problem; '
                    f"found {line.strip()[:80]!r}"
                ) from error


def audit_answers(
    file: Annotated[Path, typer.Argument(metavar="ANSWERS.JSONL", exists=True, help="a line per problem")],
    pairs: Annotated[int, typer.Option(min=1, help="pairs compared per problem, at most")] = 6,
    seconds: Annotated[float, typer.Option(min=0.1, help="deadline of one comparison")] = 5.0,
    seed: Annotated[int, typer.Option(help="of the sample of pairs")] = 0,
) -> None:
    """Compare answers to mathematical problems by our keys and by math-verify, and list where they differ.

    Each line of the file has the answers to one problem: {"answers": ["1/2", "0.5", "2"]}. Needs the extra `audit`.

    \b
    Examples:
      corl audit answers.jsonl
      corl audit answers.jsonl --pairs 20 --seed 1
    """
    with Referee(seconds) as referee:
        found = audit(sample_pairs(_groups(file), pairs, seed), referee)
    decided = found.agreed + len(found.disagreements)
    print(f"{found.pairs} pairs: {found.agreed} of {decided} decided by math-verify agree")
    print(f"{found.asymmetric} asymmetric, {found.unparsed} unparsed, {found.stopped} stopped at {seconds:g} s")
    for one in found.disagreements:
        ours = "same" if one.ours else "different"
        print(f"  {json.dumps(one.a)}  {json.dumps(one.b)}  ours: {ours}, math-verify: {one.theirs}")
