"""Which store a lock lives in, as its key tells: one of a named store begins with the name and a slash."""

from __future__ import annotations

DEFAULT = "default"
"""The store that a policy has unless it names one. Its keys begin with no name."""


def placed(key: str, store: str) -> str:
    """The key as all but its own store know it."""
    return key if store == DEFAULT else f"{store}/{key}"


def place_of(key: str) -> tuple[str, str]:
    """The store of a key, and the key as that store has it, in which no slash is."""
    store, slash, bare = key.partition("/")
    return (store, bare) if slash else (DEFAULT, key)
