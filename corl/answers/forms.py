"""Canonical forms of composite answers."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final
from urllib.parse import quote

from corl.answers.keys import AnswerKey

__all__ = ["EMPTY", "build", "element", "set_key", "tuple_key"]

MAX_FORM: Final = 512


def build(kind: str, form: str) -> AnswerKey:
    """A key, its form hashed when it is long."""
    return AnswerKey(kind, form if len(form) <= MAX_FORM else f"#{sha256(form.encode()).hexdigest()}")


def element(key: AnswerKey) -> str:
    """A key as part of a composite form; free text is quoted, so that no text can imitate a bracket or comma."""
    if key.kind == "q":
        return key.form
    return f"{key.kind}:{quote(key.form, safe=' ') if key.kind in ('text', 'raw') else key.form}"


def set_key(keys: Iterable[AnswerKey], *, distinct: bool) -> AnswerKey:
    """An unordered collection; one member alone is that member."""
    listed = list(keys)
    members = sorted(map(element, listed))
    if distinct:
        members = list(dict.fromkeys(members))
    return listed[0] if len(members) == 1 else build("set", ",".join(members))


def tuple_key(keys: Iterable[AnswerKey]) -> AnswerKey:
    return build("tuple", f"({','.join(map(element, keys))})")


EMPTY: Final = AnswerKey("set", "")
