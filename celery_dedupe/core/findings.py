"""What a check has found: one sentence each, with what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check has to say.

    Attributes:
        kind: ``"error"``: locks do not do what they should; ``"warning"``: it is likely to surprise, or will
            in a bad hour; ``"note"``: something was not looked at.
        text: what it is, and what to do.
    """

    kind: Kind
    text: str


def named(names: Iterable[str], most: int = 5) -> str:
    """Names for a sentence: the first of them, and how many more there are."""
    listed = sorted(names)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
