"""A hint for a name that is nearly right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def choices(name: object, known: Iterable[str]) -> str:
    """Return the sentence that lists the ``known`` names, led by the one that ``name`` is nearest to."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1) if isinstance(name, str) else []
    lead = f"did you mean {near[0]!r}? Known" if near else "known"
    return f"{lead} names: {', '.join(names) or 'none'}"
