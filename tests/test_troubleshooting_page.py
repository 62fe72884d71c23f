"""docs/troubleshooting.md quotes texts that the product can say, and names figures that it records."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ERRORS, EFFECTS = PAGE.split("\n## Effects\n")
PLACEHOLDER = "\0"
OF_PERCENT = re.compile(r"%(?:\([a-z]+\))?[-+ #0]*\d*(?:\.\d+)?[sdgrf]")
LEAST = 12
"""Fixed characters that a text of the source must have to be taken for a quoted one."""


class Texts(ast.NodeVisitor):
    """All strings of a module, with what is put into them as placeholders."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_Constant(self, node: ast.Constant) -> None:
        text = node.value.decode("utf-8", "replace") if isinstance(node.value, bytes) else node.value
        if isinstance(text, str):
            self.found.append(OF_PERCENT.sub(PLACEHOLDER, text))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        parts = [str(p.value) if isinstance(p, ast.Constant) else PLACEHOLDER for p in node.values]
        self.found.append("".join(parts))


@cache
def templates() -> list[str]:
    texts = Texts()
    for package in ("corl", "services/corl_judge", "trainer/corl_trainer"):
        for file in sorted((ROOT / package).rglob("*.py")):
            texts.visit(ast.parse(file.read_text(encoding="utf-8")))
    return [text for text in texts.found if len(text.replace(PLACEHOLDER, "")) >= LEAST]


def fixed_characters(quoted: str) -> int:
    """How many characters of a quoted text are fixed ones of the text of the source that fits it best."""
    return max(_fixed(template.split(PLACEHOLDER), quoted) for template in templates())


def _fixed(pieces: list[str], quoted: str) -> int:
    """Of one text, whose fixed pieces come in order; a quote may begin and end in the middle of one."""
    total = at = 0
    for piece in filter(None, pieces):
        found = quoted.find(piece, at)
        if found >= 0:
            total, at = total + len(piece), found + len(piece)
            continue
        if quoted in piece:
            return len(quoted)
        ended = next((k for k in range(len(piece), LEAST - 1, -1) if quoted.endswith(piece[:k])), 0)
        if ended:
            return total + ended
        if total:
            return 0
        at = next((k for k in range(len(piece), LEAST - 1, -1) if quoted.startswith(piece[-k:])), 0)
        total = at
    return total


def quoted(part: str) -> list[str]:
    return [text for _, text in re.findall(r"^### (`+) ?(.+?) ?\1$", part, re.MULTILINE)]


@pytest.mark.parametrize("text", quoted(ERRORS))
def test_a_quoted_text_is_one_of_ours(text: str) -> None:
    # Beside the fixed characters of one text stand names, paths, and the texts of other libraries.
    assert fixed_characters(text) >= max(LEAST, 0.25 * len(text)), text


def test_the_check_knows_a_text_that_nobody_says() -> None:
    assert fixed_characters("the judge is on holiday until Monday: come back on Tuesday") < LEAST
    assert fixed_characters("port 8000 is taken by a colleague: ask her") < LEAST


def test_every_heading_above_the_effects_is_a_text_or_a_plain_title() -> None:
    headings = re.findall(r"^### (.+)$", ERRORS.split("\n## Docker\n")[0], re.MULTILINE)
    assert len(headings) == len(quoted(ERRORS)) > 50


def test_signs_of_collapse_are_quoted_as_they_are() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| ", EFFECTS, re.MULTILINE)
    assert len(rows) == 5
    texts = Texts()
    texts.visit(ast.parse((ROOT / "corl" / "collapse.py").read_text(encoding="utf-8")))
    for row in rows:
        assert max(_fixed(text.split(PLACEHOLDER), row) for text in texts.found) >= 14, row


def test_figures_that_are_named_are_recorded() -> None:
    named = set(re.findall(r"`((?:votes|reward|rollouts|eval|sampling)/[a-z_@/1-9]+)`", EFFECTS))
    assert len(named) > 10
    said = {text for text in templates() if "/" in text}
    short = {"eval/pass@1"}
    of_trl = {"sampling/sampling_logp_difference/mean"}
    computed = {f"votes/{status}" for status in ("ok", "tie", "weak", "none")}
    known = said | short | of_trl | computed | set(_short_strings())
    assert named <= known, named - known


def _short_strings() -> Iterator[str]:
    for file in (ROOT / "trainer" / "corl_trainer").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_links_within_the_documentation_lead_somewhere() -> None:
    for name in ("troubleshooting", "operations", "rest-api", "scaling"):
        page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([\w./-]*?)(?:#([\w-]+))?\)", page):
            path = ROOT / "docs" / (target or f"{name}.md")
            assert path.is_file(), target
            if anchor:
                headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
                slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in slugs, (target, anchor)
