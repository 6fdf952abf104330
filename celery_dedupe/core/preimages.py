"""The part of a call that its key is made of, as one text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from celery_dedupe.core.arguments import Arguments, bind, check_names
from celery_dedupe.core.call import Call
from celery_dedupe.core.canonical import NoCanonicalForm, absent, canonical, key_text, quoted
from celery_dedupe.core.keyspecs import Dotted, Field, KeyFunction, Template
from celery_dedupe.core.policy import Policy
from celery_dedupe.errors import ConfigurationError, UnkeyableArguments

_MEND = "give its rule a key=: the arguments that count, or a function that returns plain values"


def content(call: Call, policy: Policy) -> str:
    """Return the text of what the policy's key counts of the call.

    Raises:
        UnkeyableArguments: an argument that counts has no canonical form, or cannot be told from the call.
        ConfigurationError: the key names an argument that the task does not have, or cannot be imported.
    """
    try:
        return _content(call, policy)
    except NoCanonicalForm as error:
        raise UnkeyableArguments(f"no key can be made of a call of {call.task!r}: {error}; {_MEND}") from None


def _content(call: Call, policy: Policy) -> str:
    key = policy.key
    if key is None:
        return _all(bind(call, policy.params), call)
    if isinstance(key, tuple):
        reader = _Reader(call, bind(call, policy.params))
        members = [f"{quoted(name)}:{reader.text(Field(name))}" for name in sorted(key)]
        return f'["names",{{{",".join(members)}}}]'
    if isinstance(key, Template):
        reader = _Reader(call, bind(call, policy.params))
        # A value stands in brackets, so that no value can pass for the literal text beside it.
        parts = [quoted(part) if isinstance(part, str) else f"[{reader.text(part)}]" for part in key.parts]
        return f'["text",[{",".join(parts)}]]'
    function = load(key, f"the rule of {call.task!r}") if isinstance(key, Dotted) else key
    try:
        value = function(*call.args, **call.kwargs)
    except Exception as error:
        raise UnkeyableArguments(
            f"the key function of {call.task!r} raised {type(error).__name__}: {error}"
        ) from error
    return f'["function",{canonical(value)}]'


def load(key: Dotted, where: str) -> KeyFunction:
    """Import a key function, or raise a ``ConfigurationError`` that begins with ``where``."""
    try:
        return key.load()
    except ValueError as error:
        raise ConfigurationError(f"{where}: key {key.path!r} {error}") from error


def _all(arguments: Arguments, call: Call) -> str:
    defaulted = arguments.defaulted
    members = {key_text(name): _form(value, name, call, defaulted) for name, value in arguments.named.items()}
    named = ",".join([f"{name}:{members[name]}" for name in sorted(members)])
    unnamed = ",".join([_form(value, number, call) for number, value in enumerate(arguments.unnamed, 1)])
    return f'["{arguments.shape}",{{{named}}},[{unnamed}]]'


def _form(value: object, name: object, call: Call, defaulted: Collection[object] = ()) -> str:
    try:
        return canonical(value)
    except NoCanonicalForm as error:
        if name in defaulted:
            return absent(call.task)
        raise UnkeyableArguments(
            f"argument {name!r} of {call.task!r} cannot be part of a key: {error}; {_MEND}"
        ) from None


@dataclass(frozen=True, slots=True)
class _Reader:
    call: Call
    arguments: Arguments

    def text(self, field: Field) -> str:
        """Return the text of the field's value."""
        groups, named = self.arguments.groups, self.arguments.named
        if field.name not in groups and field.name not in named:
            return self._missing(field.name)
        value = groups[field.name] if field.name in groups else named[field.name]
        for step in field.path:
            value = self._item(value, step, field.name)
        return _form(value, field.name, self.call, () if field.path else self.arguments.defaulted)

    def _item(self, value: object, step: str, name: str) -> object:
        quoted_step = quoted(step)
        if isinstance(value, Mapping):
            # As in JSON, keys are compared as texts, and the later of two that become one is the one.
            found = [item for key, item in value.items() if key_text(key) == quoted_step]
        elif isinstance(value, (list, tuple)) and step.isdecimal() and int(step) < len(value):
            found = [value[int(step)]]
        else:
            found = []
        if not found:
            raise UnkeyableArguments(
                f"argument {name!r} of {self.call.task!r} has no item {step!r}, which the key needs"
            )
        return found[-1]

    def _missing(self, name: str) -> str:
        if self.call.signature is not None:
            check_names((name,), self.call.signature, f"the rule of {self.call.task!r}: key")
        if self.arguments.unnamed:
            raise UnkeyableArguments(
                f"the key of {self.call.task!r} needs the argument {name!r}, but the call passes arguments "
                "by position whose names are unknown here; pass it by name, or list them in the rule's params"
            )
        return absent(self.call.task)
