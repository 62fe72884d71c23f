"""Multiple choice: option letters, and option texts where the caller knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["Options"]

Options = str | Sequence[str] | Mapping[str, str]
"""The options of one problem: letters (``"ABCD"``, ``["A", "B"]``) or letters with their texts (``{"A": "4 cm"}``)."""
