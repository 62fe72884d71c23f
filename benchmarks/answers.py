"""Speed and size of answer keys: `python benchmarks/answers.py [--answers N] [--skip-memory]`.

The mix is generated, all of it different (nothing is cached): a third shaped like MATH (integers, fractions, roots,
polynomials, tuples, intervals, equations, text), a third like GSM8K (integers, decimals, money, units), a third
multiple choice. One process, one core; times are CPU times of this process. The same mix goes through math-verify
(extra `audit`) in the same run, so that the ratio holds on any machine.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable

Answer = tuple[str, str]  # task, answer


def math_answer(r: random.Random) -> str:
    a, b, c = (r.randint(2, 999) for _ in range(3))
    shapes: list[tuple[int, Callable[[], str]]] = [
        (48, lambda: str(r.randint(-9999, 99999))),
        (16, lambda: rf"\frac{{{a}}}{{{b}}}"),
        (4, lambda: f"{a}.{b:03d}"),
        (6, lambda: rf"{a}\sqrt{{{b}}}"),
        (3, lambda: rf"\frac{{{a}+\sqrt{{{b}}}}}{{{c}}}"),
        (3, lambda: rf"\frac{{{a}\pi}}{{{b}}}"),
        (5, lambda: f"{a}x^2-{b}x+{c}"),
        (2, lambda: f"(x+{a})(x-{b})"),
        (4, lambda: f"({a},{-b})"),
        (2, lambda: rf"[{a}, \infty)"),
        (1, lambda: rf"(-\infty, -{a}) \cup ({b}, \infty)"),
        (2, lambda: f"x={a}, y={b}"),
        (1, lambda: f"y = {a}x + {b}"),
        (1, lambda: rf"{a}^\circ"),
        (1, lambda: rf"\text{{{r.choice(['Monday', 'even', 'Yes', 'circle'])}}}"),
        (1, lambda: rf"\begin{{pmatrix}} {a} & {b} \\ {c} & 1 \end{{pmatrix}}"),
    ]
    weights = [weight for weight, _ in shapes]
    return r.choices([make for _, make in shapes], weights)[0]()


def word_problem_answer(r: random.Random) -> str:
    n = r.randint(1, 99999)
    shapes = [str(n), str(n), str(n), f"{n:,}", f"{n}.{r.randint(10, 99)}", rf"\${n}", f"{n} hours", f"{n / 100:.2f}%"]
    return r.choice(shapes)


def choice_answer(r: random.Random) -> str:
    letter = r.choice("ABCDE")
    return r.choice([letter, letter, f"({letter})", rf"\text{{{letter}}}", f"{letter}. {r.randint(1, 9999)} cm"])


def mix(count: int) -> list[Answer]:
    r = random.Random(7)
    makers = [("math", math_answer), ("math", word_problem_answer), ("choice", choice_answer)]
    return [(task, make(r)) for _ in range(count // 3) for task, make in makers]


def times(function: Callable[[Answer], object], answers: list[Answer]) -> list[float]:
    """CPU seconds of each call."""
    clock = time.process_time_ns
    spent = []
    for answer in answers:
        start = clock()
        function(answer)
        spent.append((clock() - start) / 1e9)
    return spent


def report(name: str, spent: list[float]) -> float:
    mean = statistics.fmean(spent)
    p99 = sorted(spent)[int(len(spent) * 0.99)]
    print(f"{name:28} {60 / mean:12,.0f} answers/min/core   mean {mean * 1e3:7.3f} ms   p99 {p99 * 1e3:7.2f} ms")
    return mean


def import_times() -> None:
    for statement in ("import corl.answers", "import math_verify"):
        code = f"import time; start = time.process_time(); {statement}; print(time.process_time() - start)"
        runs = []
        for _ in range(3):
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{statement}: not installed")
                break
            runs.append(float(done.stdout))
        else:
            print(f"{statement:28} {min(runs) * 1e3:8.0f} ms CPU (best of 3)")


def memory(count: int) -> None:
    from corl.answers import key

    answers = mix(30_000)
    gc.collect()
    tracemalloc.start()
    keys = {key(answer, task) for task, answer in answers}
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    each = size / len(keys)
    print(f"{'memory':28} {each:8.0f} bytes a distinct key, {each * count / 2**20:,.0f} MiB a million")
    # Keeping nothing, memory must not grow with what has passed through.
    before = peak()
    for done in range(0, count, len(answers)):
        for task, answer in answers:
            key(f"{done}+{answer}" if task == "math" else answer, task)
    print(f"{'':28} {peak() - before:8.1f} MiB more after {count:,} answers keyed and dropped")


def peak() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def votes(answers: list[Answer]) -> None:
    from corl.votes import tally

    r = random.Random(11)
    pool = [answer for task, answer in answers if task == "math"]
    groups = [r.choices(r.sample(pool, 8), k=64) for _ in range(200)]
    start = time.process_time()
    for group in groups:
        tally(group)
    each = (time.process_time() - start) / len(groups)
    print(f"{'a vote over 64 answers':28} {each * 1e3:8.2f} ms ({64 / each * 60:,.0f} answers/min/core)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, default=60_000, help="answers keyed")
    parser.add_argument("--skip-memory", action="store_true", help="leave out the million answers")
    arguments = parser.parse_args()

    from corl.answers import extract, key

    answers = mix(arguments.answers)
    print(f"{len(answers):,} answers, {len(set(answers)):,} different")
    times(lambda answer: key(answer[1], answer[0]), answers[:300])
    ours = report("corl.answers.key", times(lambda answer: key(answer[1], answer[0]), answers))
    for task in ("math", "choice"):
        part = [answer for answer in answers if answer[0] == task]
        report(f"  {task} only", times(lambda answer: key(answer[1], answer[0]), part))
    symbolic = [answer for answer in answers if answer[0] == "math" and not answer[1].lstrip("-").isdigit()]
    report("  not plain integers only", times(lambda answer: key(answer[1], answer[0]), symbolic))
    completions = [
        ("math", f"{'So we add the two and go on. ' * 140} The answer is $\\boxed{{{answer}}}$.")
        for _, answer in answers
    ]
    report("extract, from 4 KB", times(lambda completion: extract(completion[1]), completions[:6000]))
    votes(answers)
    import_times()
    try:
        from math_verify import parse
    except ImportError:
        print("math-verify: not installed (extra `audit`); no ratio")
    else:
        sample = answers[:900]
        theirs = report(
            "math_verify.parse", times(lambda answer: parse(rf"\boxed{{{answer[1]}}}", parsing_timeout=None), sample)
        )
        print(f"{'ratio':28} {theirs / ours:8.1f} times the CPU of a key, before anything is compared")
    if not arguments.skip_memory:
        memory(1_000_000)


if __name__ == "__main__":
    main()
