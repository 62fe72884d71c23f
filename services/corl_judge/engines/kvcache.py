"""Keys and values of a running batch, as transformers wants them, with room to grow.

All rows are aligned at their right end: column `length - 1` holds every row's newest token, and what lies left of a
row's first token is padding that the attention mask hides. So rows of any age decode together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

__all__ = ["KVCache", "Part", "bytes_per_token"]

ROOM = 64  # columns allocated at a time


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """A DynamicLayer that writes new columns in place instead of copying all it holds at every token."""

    _key_store: torch.Tensor
    _value_store: torch.Tensor

    def fill(self, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
        """Take over stores [rows, heads, columns, head_dim] whose first `length` columns are filled."""
        self._key_store, self._value_store = keys, values
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self.keys, self.values = keys[:, :, :length], values[:, :, :length]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append columns [rows, heads, new, head_dim]; returns all columns so far."""
        if not self.is_initialized:
            self.fill(key_states, value_states, key_states.shape[-2])
            return self.keys, self.values
        length, new = self.keys.shape[-2], key_states.shape[-2]
        if length + new > self._key_store.shape[-2]:
            self.fill(_grown(self.keys, length + new + ROOM), _grown(self.values, length + new + ROOM), length)
        self._key_store[:, :, length : length + new] = key_states
        self._value_store[:, :, length : length + new] = value_states
        self.fill(self._key_store, self._value_store, length + new)
        return self.keys, self.values


def _grown(held: torch.Tensor, columns: int) -> torch.Tensor:
    rows, heads, length, dim = held.shape
    store = held.new_empty((rows, heads, columns, dim))
    store[:, :, :length] = held
    return store


class KVCache(Cache):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=GrowingLayer)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a cache that go into a new one; a row may be taken more than once."""

    cache: KVCache
    rows: torch.Tensor

    @classmethod
    def join(cls, parts: Sequence[Part], length: int, room: int) -> KVCache:
        """A new cache of the parts' rows in order, right-aligned in `length` columns, with room for `room` more or for
        as many as are allocated at a time.

        Columns beyond `length` are cut off on the left, where they are padding. The parts' caches are used up.
        """
        joined = KVCache()
        columns = length + min(room, ROOM)
        for layers in zip(*(part.cache.layers for part in parts), strict=True):
            layer = GrowingLayer()
            keys = _gather([x.keys for x in layers], [part.rows for part in parts], length, columns)
            values = _gather([x.values for x in layers], [part.rows for part in parts], length, columns)
            layer.fill(keys, values, length)
            for used in layers:  # one layer at a time is held twice, not the whole cache
                used.reset()
                del used._key_store, used._value_store
            joined.layers.append(layer)
        return joined


def _gather(sources: Sequence[torch.Tensor], rows: Sequence[torch.Tensor], length: int, columns: int) -> torch.Tensor:
    _, heads, _, dim = sources[0].shape
    store = sources[0].new_empty((sum(len(r) for r in rows), heads, columns, dim))
    first = 0
    for source, index in zip(sources, rows, strict=True):
        last, kept = first + len(index), min(source.shape[-2], length)
        # Hidden columns still enter the attention with weight zero, and zero times a stray NaN is NaN.
        store[first:last, :, : length - kept] = 0
        store[first:last, :, length - kept : length] = source[:, :, source.shape[-2] - kept :].index_select(0, index)
        first = last
    return store


def bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Bytes of keys and values that one token of one row takes, from a model's text config."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * head_dim * dtype.itemsize)
