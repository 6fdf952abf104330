"""What a policy's ``key`` may be, parsed: argument names, a template, a dotted path, a callable."""

from __future__ import annotations

import importlib
import re
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

KeyFunction = Callable[..., Any]

_SEGMENT = re.compile(r"(?!__)[\w-]+")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*(\.[^\W\d]\w*)*")
_FIELD_MEND = "a field is an argument's name, then mapping keys or list indexes: {order.id}, {items.0}"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a template: the argument's name and the mapping keys or list indexes to follow in it."""

    name: str
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed key template. ``parts`` are literal texts and fields, in order.

    Two templates are equal when their parts are, however their braces were escaped.
    """

    text: str = field(compare=False)
    parts: tuple[str | Field, ...]


@dataclass(frozen=True, slots=True)
class Dotted:
    """The dotted path of a function, imported when it is first needed."""

    path: str

    def load(self) -> KeyFunction:
        """Import the function.

        Raises:
            ValueError: there is no such module or attribute, or it is not callable.
        """
        module, _, name = self.path.rpartition(":" if ":" in self.path else ".")
        try:
            found = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except Exception as error:
            raise ValueError(f"cannot be imported ({type(error).__name__}: {error})") from error
        if not callable(found):
            raise ValueError(f"is not a function but a {type(found).__name__}")
        function: KeyFunction = found
        return function


KeySpec = tuple[str, ...] | Template | Dotted | KeyFunction | None
KeySource = Sequence[str] | Template | Dotted | KeyFunction | None


def parse_key(value: object, *, literal: bool = False) -> KeySpec:
    """Return the key specification that ``value`` spells.

    Args:
        value: ``None`` for all arguments, a list of argument names, a text with ``{fields}``, the dotted path
            of a function, or a callable.
        literal: a text without braces is itself the key, not a dotted path.

    Raises:
        ValueError: it spells none. The message says how to write one.
    """
    if value is None or isinstance(value, (Template, Dotted)):
        return value
    if isinstance(value, str):
        if literal or "{" in value or "}" in value:
            return parse_template(value)
        if is_dotted(value):
            return Dotted(value)
        raise ValueError(
            f"is no key: write [{value!r}] for an argument's name, a text with {{fields}}, "
            "or the dotted path of a function"
        )
    if isinstance(value, (list, tuple)):
        return _names(value)
    if callable(value):
        return value
    raise ValueError("is no key: write a list of argument names, a text with {fields}, or a function")


def is_dotted(text: str) -> bool:
    """Whether a text has the form of a dotted path."""
    return _DOTTED.fullmatch(text) is not None


def _names(value: Iterable[object]) -> tuple[str, ...]:
    names: list[str] = []
    for name in value:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"has {name!r}: a key list holds plain argument names")
        if name in names:
            raise ValueError(f"names {name!r} twice")
        names.append(name)
    return tuple(names)


def parse_template(text: str) -> Template:
    """Return the template that ``text`` spells; ``{{`` and ``}}`` are literal braces.

    Raises:
        ValueError: unbalanced braces, or a field that is more than a name with mapping keys or list indexes.
    """
    parts: list[str | Field] = []
    try:
        parsed = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"has unbalanced braces ({error}); write {{{{ for a brace itself") from None
    for words, name, spec, conversion in parsed:
        if words and parts and isinstance(parts[-1], str):
            parts[-1] += words
        elif words:
            parts.append(words)
        if name is not None:
            if spec or conversion:
                raise ValueError(f"formats the field {{{name}}}, which a key cannot: {_FIELD_MEND}")
            parts.append(_field(name))
    return Template(text, tuple(parts))


def _field(text: str) -> Field:
    name, *path = text.split(".")
    if not name.isidentifier() or not all(_SEGMENT.fullmatch(part) for part in path):
        raise ValueError(f"has the field {{{text}}}: {_FIELD_MEND}")
    return Field(name, tuple(path))
