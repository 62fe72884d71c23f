"""Answers made by breaking and joining real ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

PIECES = [
    "\\frac{", "}", "{", "(", ")", "[", "]", "\\{", "\\}", "^", "_", "!", "%", ",", ";", ":", "|", "=", "<",
    "\\le ", "\\pm ", "\\sqrt{", "\\sqrt[3]{", "\\text{ cm}", "\\text{", "\\cup ", "\\infty", "\\begin{pmatrix}",
    "\\\\", "&", "\\end{pmatrix}", "\\int_0^1 ", " dx", "\\sum_{k=1}^{9}", "\\binom{", "\\log_{2}", "\\sin ",
    "\\circ", "\\overline{3}", " or ", " and ", "x", "e", "i", "\\pi ", "0", "9", "99999999", "1e9", "10^{10}",
    ".", "...", "\\$", "$", "\\boxed{", "²", "½", "√", "−", "，", "\u200b", "̅", "\ud800", "\x00", "\n", "\\", "'",
    "\"", "__", "**", " ", "\\mathbb{R}", "\\pmod{7}", "!!", "-", "+", "/", "*", "1/2", "1,000", "five", " hours",
    "\\text{ or }", "\\dot{1}", "_8", "12:00",
]  # fmt: skip


def mutants(seeds: Sequence[str], count: int, seed: int) -> Iterator[str]:
    chance = random.Random(seed)
    for _ in range(count):
        text = chance.choice(seeds)
        for _ in range(chance.randint(1, 6)):
            at, to = sorted((chance.randint(0, len(text)), chance.randint(0, len(text))))
            change = chance.randrange(7)
            if change == 0:
                text = text[:at] + text[to:]
            elif change == 1:
                text = text[:at] + text[at:to] * chance.choice([2, 3, 40]) + text[to:]
            elif change == 2:
                other = chance.choice(seeds)
                text = text[:at] + other[: chance.randint(0, len(other))] + text[at:]
            elif change == 3:
                text = text[:at] + chr(chance.choice([chance.randrange(128), chance.randrange(0x11000)])) + text[at:]
            elif change == 4:
                text = text[:at] + text[at:to][::-1] + text[to:]
            else:
                text = text[:at] + chance.choice(PIECES) * chance.choice([1, 1, 1, 2, 12]) + text[at:]
        yield text[:5000]
