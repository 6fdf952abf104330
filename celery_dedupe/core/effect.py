"""What an effect is called in a database, whichever library talks to it. Pure."""

from __future__ import annotations

from uuid import UUID

TABLE = "celery_dedupe_effects"
KIND_LENGTH = 100  # characters; both together fit an index of MySQL
OBJECT_ID_LENGTH = 255


def effect_name(kind: str, object_id: str | int | UUID) -> tuple[str, str]:
    """Return the two texts that name an effect: equal ones are one effect.

    Raises:
        TypeError: one is of a type that has no text of its own.
        ValueError: one is empty, too long, or ends in a space, which MySQL does not tell from none.
    """
    if isinstance(object_id, UUID) or (isinstance(object_id, int) and not isinstance(object_id, bool)):
        object_id = str(object_id)
    return _text("kind", kind, KIND_LENGTH), _text("object_id", object_id, OBJECT_ID_LENGTH)


def _text(name: str, value: object, length: int) -> str:
    if not isinstance(value, str):
        also = ", int or UUID" if name == "object_id" else ""
        raise TypeError(f"effect_once: {name} is of type {type(value).__name__}; pass a str{also}")
    if not value or len(value) > length:
        raise ValueError(
            f"effect_once: {name} has {len(value)} characters; pass 1 to {length}, or a digest of it"
        )
    if value.endswith(" "):
        raise ValueError(f"effect_once: {name} {value!r} ends in a space; strip it, or pass a digest of it")
    return value
