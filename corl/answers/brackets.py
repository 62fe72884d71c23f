"""Bracketed answers: sets, tuples, intervals, set-builder notation, matrices and other environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from corl.answers.expressions import is_constant, node_key, try_parse
from corl.answers.forms import EMPTY, build, element, set_key, tuple_key
from corl.answers.keys import AnswerKey
from corl.answers.lexer import Token, spell
from corl.answers.spans import Span, span_key
from corl.answers.structure import enclosed, split, trim
from corl.answers.typed import Typed, Typer

__all__ = ["bracketed", "environment"]

MAX_MEMBERS: Final = 10_000
_MATRICES: Final = frozenset(
    {"pmatrix", "bmatrix", "matrix", "Bmatrix", "smallmatrix", "array", "psmallmatrix", "bsmallmatrix"}
)
_ROWS: Final = frozenset({"cases", "aligned", "align", "align*", "gathered", "split", "rcases", "dcases"})


def _is_comma(token: Token) -> bool:
    return token.kind == "sep" and token.text in ",;"


def bracketed(tokens: list[Token], typer: Typer) -> Typed | None:
    """The typed form of tokens that one pair of brackets encloses; None when they have none."""
    if not enclosed(tokens):
        return None
    opener, closer = tokens[0].text, tokens[-1].text
    inner = tokens[1:-1]
    if opener == "\\{" and closer == "\\}":
        return _braces(inner, typer)
    parts, commas = split(inner, _is_comma)
    if opener == "{":
        return _braces(inner, typer) if commas or not inner else None
    if not commas:
        if opener in "([<" and closer in ")]>":
            return typer.answer(trim(inner))
        return None
    if len(parts) > MAX_MEMBERS or not all(parts):
        return None
    members = [typer.answer(trim(part)) for part in parts]
    keys = [member.key for member in members if member is not None]
    if len(keys) < len(members):
        return None
    if any(member is not None and member.relation for member in members):
        return typer.answer(inner) if opener == "(" else None
    if opener == "[" and closer == "]" and all(_is_row(trim(part)) for part in parts):
        return _matrix([], [split(trim(part)[1:-1], _is_comma)[0] for part in parts], [], typer)
    if len(keys) == 2 and opener in "([" and closer in ")]":
        return _interval(keys[0], opener, keys[1], closer)
    return Typed(tuple_key(keys))


def _is_row(tokens: list[Token]) -> bool:
    return enclosed(tokens) and tokens[0].text == "[" and tokens[-1].text == "]"


def _interval(low: AnswerKey, opener: str, high: AnswerKey, closer: str) -> Typed:
    span = Span(low, opener == "[" and low.kind != "inf", high, closer == "]" and high.kind != "inf")
    if opener == "[" and closer == "]" and low == high:
        return Typed(tuple_key([low, high]))
    ordered = is_constant(low) and is_constant(high)
    return Typed(span_key(span), spans=(span,) if ordered or low.kind == "f" or high.kind == "f" else None)


def _braces(inner: list[Token], typer: Typer) -> Typed | None:
    if not inner:
        return Typed(EMPTY, spans=())
    head, bar = split(inner, lambda token: token.text in ("|", ":") and token.kind in ("rel", "op", "sep"))
    if bar and len(head) == 2:
        condition = typer.answer(trim(head[1]))
        if condition is not None and condition.relation and condition.spans is not None:
            return replace(condition, relation=False)
        return None
    parts, _ = split(inner, _is_comma)
    if len(parts) > MAX_MEMBERS:
        return None
    members = [typer.answer(trim(part)) for part in parts if part]
    keys = [member.key for member in members if member is not None]
    if len(keys) < len(members) or not keys:
        return None
    if any(key.kind == "text" and key.form == "..." for key in keys):
        return Typed(build("seq", ",".join(map(element, keys))))
    points = tuple(Span(key, True, key, True) for key in keys) if all(map(is_constant, keys)) else None
    return Typed(set_key(keys, distinct=True), spans=points)


def environment(tokens: list[Token], typer: Typer) -> Typed | None:
    """A matrix, with a scalar before it and a transposition after it, or the lines of cases and aligned."""
    begin = next((at for at, token in enumerate(tokens) if token.kind == "cmd" and token.text == "begin"), None)
    end = next((at for at, token in enumerate(tokens) if token.kind == "cmd" and token.text == "end"), None)
    if begin is None or end is None or end < begin:
        return None
    name = _argument(tokens[begin + 1 :])
    body = tokens[begin + 2 + _length(tokens[begin + 1 :]) : end]
    after = tokens[end + 1 + 1 + _length(tokens[end + 1 :]) :]
    if name == "array":
        body = body[_length(body) + 1 :] if body and body[0].text == "{" else body
    rows = [
        split(row, lambda token: token.kind == "op" and token.text == "&")[0]
        for row in split(body, lambda token: token.kind == "sep" and token.text == "\\\\")[0]
        if trim(row)
    ]
    if name in _ROWS and not tokens[:begin]:
        return _lines(rows, typer)
    if name not in _MATRICES or not rows or sum(map(len, rows)) > 400:
        return None
    return _matrix(tokens[:begin], rows, after, typer)


def _length(tokens: Sequence[Token]) -> int:
    """Tokens from an opening brace to before its closing one."""
    return next((at for at, token in enumerate(tokens) if token.text == "}"), 0)


def _argument(tokens: Sequence[Token]) -> str:
    return "".join(token.text for token in tokens[1 : _length(tokens)])


def _matrix(before: list[Token], rows: list[list[list[Token]]], after: list[Token], typer: Typer) -> Typed | None:
    scale = try_parse(before) if before else None
    if (before and scale is None) or len({len(row) for row in rows}) > 1:
        return None
    transposed = bool(after)
    if after and spell(after).replace("{ ", "").replace(" }", "") not in ("^ T", "^ top", "^ intercal", "^ t", "^ '"):
        return None
    keys: list[list[AnswerKey]] = []
    for row in rows:
        keys.append([])
        for cell in row:
            if scale is not None:
                node = try_parse(cell)
                key = node_key(("*", [scale, node]), typer.work) if node is not None else None
            else:
                typed = typer.answer(trim(cell))
                key = typed.key if typed is not None else None
            if key is None:
                return None
            keys[-1].append(key)
    if transposed:
        keys = [list(column) for column in zip(*keys, strict=True)]
    if len(keys) == 1 and len(keys[0]) == 1:
        return Typed(keys[0][0])
    if all(len(row) == 1 for row in keys):
        return Typed(tuple_key(row[0] for row in keys))  # a column is the vector of its entries
    return Typed(build("matrix", ";".join(",".join(map(element, row)) for row in keys)))


def _lines(rows: list[list[list[Token]]], typer: Typer) -> Typed | None:
    """The lines of ``cases``: a system is a list of relations; pieces with conditions are a set of pairs."""
    if all(len(row) == 2 and trim(row[0]) and trim(row[1]) and row[1][0].kind != "rel" for row in rows) and not any(
        token.kind == "rel" for row in rows for token in row[0]
    ):
        pieces = []
        for row in rows:
            value, condition = typer.answer(trim(row[0])), typer.answer(_condition(trim(row[1])))
            if value is None or condition is None:
                return None
            pieces.append(f"{element(value.key)} if {element(condition.key)}")
        return Typed(build("cases", ";".join(sorted(pieces))))
    lines: list[Token] = []
    for row in rows:
        joined = [token for cell in row for token in cell]
        lines += [*([Token("sep", ",", False)] if lines else []), *trim(joined)]
    return typer.answer(lines)


def _condition(tokens: list[Token]) -> list[Token]:
    while tokens and tokens[0].kind in ("text", "word") and tokens[0].text.lower() in ("if", "for", "when", "where"):
        tokens = tokens[1:]
    return tokens
