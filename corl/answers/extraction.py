"""What a completion commits to: the last box after the thinking, else what follows the last marker.

There is no fallback to the last number of a text: "I am stuck at step 7" would vote for 7. Boxes are looked for in the
last 200,000 characters, markers in the last 6,000, each in one scan with linear patterns.
"""

from __future__ import annotations

import re
from typing import Final

from corl.answers.clean import printable

__all__ = ["MARKER_WINDOW", "boxed", "extract_math", "marked", "tagged", "tail"]

WINDOW: Final = 200_000
MARKER_WINDOW: Final = 6_000
MAX_ANSWER: Final = 2_000
MAX_BOXES: Final = 50  # looked at, from the end
MAX_MARKERS: Final = 50

_BOX: Final = re.compile(r"(\\{1,2})(?:boxed|fbox|framebox)\s{0,4}(?=[{A-Za-z0-9$\\-])")
_BARE_BOX: Final = re.compile(r"[^\s$,.;{}\\]{1,40}")
_BETWEEN: Final = re.compile(
    r"\s{0,3}\$?\s{0,3}(?:,|,?\s?(?:and|or|\\text\{\s?(?:and|or)\s?\}|和|或))\s{0,3}\$?\s{0,3}(?:[A-Za-z](?:_\w)?\s?=\s?)?\$?\s{0,3}"
)
_PLACEHOLDER: Final = re.compile(
    r"(?:\\text\{)?\s{0,3}(?:\.{3}|\\[lc]?dots|…|_{1,9}"
    r"|(?:your |the |final |numerical ){0,3}(?:answer|result)(?: here)?)\s{0,3}\}?",
    re.IGNORECASE,
)
_ANSWER_TAG: Final = re.compile(r"<answer>", re.IGNORECASE)
_ANSWER_END: Final = re.compile(r"</answer>", re.IGNORECASE)

_IS: Final = r"(?:is|was|are|equals|(?:would|must|should|will)\s(?:be|equal)|becomes|comes\sto)"
_ADVERB: Final = r"(?:therefore|thus|then|hence|simply|just|indeed|clearly)"
_MARKER: Final = re.compile(
    rf"""(?:\#\#\#\#
    |(?:^|\n)[#*\s]{{1,8}}(?:final\s)?answer[*_:：]{{0,4}}[^\S\n]{{0,3}}\n
    |\bans(?:wers?)?\b[*_"'`]{{0,3}}\s?(?:\([^()\n]{{0,40}}\)\s?|(?:to|of|for)\s[^.\n:?]{{1,80}}?\s)?
        (?:{_ADVERB}\s)?(?:{_IS}\b(?:\s{_ADVERB}\b)?|[:=：]|[-–—]\s(?=[-$\\0-9]))
    |\bfinal\s(?:answer|result)\b[*_]{{0,3}}[:：]?[*_]{{0,3}}\s{{0,3}}\n
    |\b(?:final\s)?result\s?(?:{_IS}\b|[:=：])
    |答案\s?(?:是|为|[:：])|答[:：]|故选|结果\s?(?:是|为|[:：])
    )[\s:：=*_]{{0,12}}""",
    re.VERBOSE | re.IGNORECASE,
)
_MATH: Final = re.compile(
    r"\$\$(.{1,1000}?)\$\$|\$(?=[^\s$])([^$\n]{0,600}[^\s$\\])\$(?![0-9])|\\\((.{1,600}?)\\\)|\\\[(.{1,1000}?)\\\]",
    re.DOTALL,
)
_SENTENCE_END: Final = re.compile(r"[.。!！？?](?=[\s*\"'”)]|$)|[。；]|\n")
_CLAUSE: Final = re.compile(
    r",?\s(?:because|since|so|as|which|where|therefore|thus|hence|by|when|given|due|after|assuming)\s|[,;]\s(?=[a-z]{3,})(?!and\s|or\s)"
)
_AMOUNT: Final = re.compile(
    r"(-?\\?\$?[0-9][0-9,.]{0,30}(?:/[0-9]{1,20})?(?:\\?%)?)\s(?:of|for|at|from|per(?!\scent))\s"
)
_UNKNOWN: Final = re.compile(
    r"(?:(?:still|currently) )?(?:unknown|unclear|uncertain|unsure|not\b|hard to|impossible to say|e\.g|i\.e|"
    r"i (?:do not|don't))",
    re.IGNORECASE,
)
_QUANTITY_NOUN: Final = (
    "total|sum|result|value|product|difference|quotient|remainder|number|probability|area|volume|perimeter|length|"
    "height|width|radius|distance|speed|cost|price|profit|average|mean|median|solution|solutions|ratio|angle"
)
_HAS: Final = (
    r"(?:has|have|had|needs?|gets?|got|earns?|earned|costs?|pays?|paid|makes?|made|sold|takes?|took|spends?|spent|"
    r"saves?|saved|receives?|received|weighs?|travels?|traveled)"
)
_CONCLUSION: Final = re.compile(
    rf"""(?:^|[.!?\n]\s{{0,3}})[*_]{{0,2}}
    (?:(?:so|thus|therefore|hence|finally|altogether|in\stotal|in\sconclusion|overall),?\s
        [^.\n]{{0,120}}?\s(?:{_IS}|{_HAS}|=)
    |(?:(?:so|thus|therefore|hence),?\s)?(?:(?:the|her|his|their|our)\s)?(?:\w{{1,20}}\s){{0,3}}
        (?:{_QUANTITY_NOUN})\b[^.\n=]{{0,80}}?(?:\s{_IS}|\s?[=:]))
    \s{{0,3}}(?:a\stotal\sof\s|exactly\s)?(?=[-+(]?\s?[$\\0-9])""",
    re.VERBOSE | re.IGNORECASE,
)


def tail(completion: str) -> str:
    """The part to look at: after the last ``</think>``, the last :data:`WINDOW` characters of it."""
    text = completion.rstrip()[-WINDOW:]
    thought = text.rfind("</think>")
    if thought >= 0:
        text = text[thought + len("</think>") :]
    return text if text.isascii() else "\n".join(map(printable, text.split("\n")))


def _close(text: str, at: int) -> int:
    """The position of the brace that closes the one at ``at``, escaped braces apart; -1 if there is none in reach."""
    depth = 0
    end = min(len(text), at + MAX_ANSWER + 2)
    while at < end:
        sign = text[at]
        if sign == "\\":
            at += 1
        elif sign == "{":
            depth += 1
        elif sign == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return -1


_SILENT: Final = re.compile(r"\\(?:text|textbf|mathrm|mbox|q?quad|[ ,;:!])")
_SAYS: Final = re.compile(r"[^\W_]|[∅∞√]|\\\{\s{0,3}\\\}")


def _blank(content: str) -> bool:
    """Whether nothing is said: no letter or digit (but the empty set's braces), or a placeholder."""
    return _SAYS.search(_SILENT.sub("", content)) is None or _PLACEHOLDER.fullmatch(content.strip()) is not None


def boxed(text: str) -> tuple[str | None, bool]:
    """The content of the last well-formed, non-empty box, and whether there was any box at all but an empty one.

    Boxes joined by a comma, "and" or "or" are one list.
    """
    found: list[str] = []
    cut = False
    after = -1  # where the box found last begins
    for match in reversed(list(_BOX.finditer(text))[-MAX_BOXES:]):
        at = match.end()
        if text[at] == "{":
            close = _close(text, at)
            content, end = text[at + 1 : close], close + 1
            if close < 0:
                cut = True
                continue
        else:
            bare = _BARE_BOX.match(text, at)
            content, end = (bare[0], bare.end()) if bare is not None else ("", at)
        if _blank(content):
            continue
        if found and (end > after or _BETWEEN.fullmatch(text, end, after) is None):
            break
        found.insert(0, (content.replace("\\\\", "\\") if len(match[1]) == 2 else content).strip())
        after = match.start()
    return (", ".join(found), True) if found else (None, cut)


def extract_math(completion: str) -> str | None:
    """The answer of a completion to a mathematical problem, as written; None when it commits to none."""
    text = tail(completion)
    content, seen = boxed(text)
    if content is not None or seen:
        return content
    return tagged(text) or marked(text[-MARKER_WINDOW:]) or _concluded(text[-800:])


def tagged(text: str) -> str | None:
    """The content of the last ``<answer>``, closed or at the end of the text."""
    opened = [match.end() for match in _ANSWER_TAG.finditer(text)]
    if not opened:
        return None
    closing = _ANSWER_END.search(text, opened[-1])
    content = text[opened[-1] : closing.start() if closing else opened[-1] + MAX_ANSWER].strip()
    if _blank(content) or len(content) > MAX_ANSWER - 2:
        return None
    return marked(content) or content


def marked(text: str) -> str | None:
    """The answer after the last marker that has one."""
    for match in reversed(list(_MARKER.finditer(text))[-MAX_MARKERS:]):
        answer = _after(text[match.end() : match.end() + MAX_ANSWER])
        if answer is not None:
            return answer
    return None


def _after(text: str) -> str | None:
    """The answer at the start of the text after a marker."""
    text = text.lstrip(" \t\n*_:：`")
    math = _MATH.match(text)
    if math is not None:
        rest = text[math.end() : math.end() + 12].lstrip()
        if not rest.startswith(("and ", "or ", ", $", "$")):
            return _stripped(next(part for part in math.groups() if part is not None))
    end = _SENTENCE_END.search(text)
    sentence = text[: end.start()] if end is not None else text
    clause = _CLAUSE.search(sentence)
    if clause is not None:
        sentence = sentence[: clause.start()]
    amount = _AMOUNT.match(sentence)
    if amount is not None:
        return amount[1]
    inside = list(_MATH.finditer(sentence))
    if len(inside) == 1:
        return _stripped(next(part for part in inside[0].groups() if part is not None))
    if _UNKNOWN.match(sentence) or (len(sentence.split()) > 8 and not re.search("[0-9\\\\$]", sentence)):
        return None
    return _stripped(sentence)


def _stripped(answer: str) -> str | None:
    answer = answer.strip(' \t\n*_`"”“')
    if answer.endswith(".") and not answer.endswith(".."):
        answer = answer[:-1].rstrip(" *_")
    if _blank(answer) or re.fullmatch(r"\\+(?:boxed|fbox)\s?(?:\{\s*\})?", answer) or len(answer) > MAX_ANSWER:
        return None
    return answer


def _concluded(text: str) -> str | None:
    """The value that the last sentence states: "The total is 72 clips."; not any number that happens to come last."""
    text = text.rstrip()
    matches = list(_CONCLUSION.finditer(text))
    if not matches:
        return None
    rest = text[matches[-1].end() :]
    end = _SENTENCE_END.search(rest)
    if end is not None and rest[end.end() :].strip(" \n*_\"'”)"):
        return None  # more follows: not the last sentence
    return _after(rest)
