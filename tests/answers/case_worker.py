"""Runs answer cases for its parent: a JSON line in, a JSON line out. A child process, so that it can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from typing import Any

from corl.answers import AnswerKey, equivalent, extract, key
from corl.answers.clean import clean
from corl.answers.lexer import lex
from corl.answers.mathkey import type_tokens
from corl.votes import tally
from tests.answers.mutation import mutants

MEMORY = 1 << 30


def text(value: Any) -> Any:
    """A case's text; long ones are written as repetitions or sequences."""
    if not isinstance(value, dict):
        return value
    if "rep" in value:
        return "".join(part * times for part, times in value["rep"])
    numbers = value["seq"]
    return numbers["sep"].join(numbers["fmt"] % i for i in range(numbers["from"], numbers["to"], numbers["step"]))


def peak_mib() -> float:
    """Most memory that this program held. getrusage's maxrss starts at what the parent held when it forked."""
    with contextlib.suppress(FileNotFoundError), open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fuzz(case: dict[str, Any]) -> dict[str, Any]:
    """Key and extract mutants; every key must survive the wire. What fails is returned, escaped."""
    failures = []
    for mutant in mutants(case["seeds"], case["count"], case["seed"]):
        try:
            tokens = lex(clean(mutant[:2000]))
            if tokens is not None:
                type_tokens(tokens)  # unguarded: a fault that math_key would contain fails here
            for task in ("math", "choice", "text"):
                found = key(mutant, task)
                if found is not None:
                    again = AnswerKey.parse(str(found))
                    assert again == found
                    assert str(again) == str(found)
                    assert len(str(found).encode()) < 4000
                    assert found.value is None or found.approx is not None
            answer = extract(f"{mutant} so the answer is {mutant}")
            assert answer is None or len(answer) <= 2000
        except Exception as error:
            failures.append([ascii(mutant), repr(error)])
    return {"failures": failures[:5], "peak_mib": peak_mib()}


def run(case: dict[str, Any]) -> Any:
    if case["kind"] == "fuzz":
        return fuzz(case)
    task = case.get("task") or ("choice" if case["kind"] == "mcq" else "math")
    options = case.get("options")
    if "answers" in case:
        vote = tally([text(answer) for answer in case["answers"]], task=task, options=options, min_parsed=1)
        winner = case["expected"].get("winner")
        agrees = winner is None or vote.key == key(winner, task, options)
        return {"status": vote.status, "count": vote.count, "winner": winner if agrees else str(vote.key)}
    if "completion" in case:
        found, expected = extract(text(case["completion"]), task, options), case["expected"]
        same = found == expected or (None not in (found, expected) and equivalent(found, expected, task, options))
        return expected if same else found
    return equivalent(text(case["a"]), text(case["b"]), task, options)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no result
    key("1"), equivalent(r"\sqrt{2}", "x"), tally(["1"])  # loaded and warm: what follows is one case each
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        try:
            result = {"value": run(json.loads(line))}
        except BaseException as error:
            result = {"raised": repr(error)[:500]}
        print(json.dumps(result), file=out, flush=True)


if __name__ == "__main__":
    main()
