"""A call and a policy make a key: the one name under which equal calls meet in the store."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from urllib.parse import quote

from celery_dedupe.core.arguments import check_names, positional
from celery_dedupe.core.call import Call
from celery_dedupe.core.canonical import encoded, quoted
from celery_dedupe.core.keyspecs import Dotted, Field, Template
from celery_dedupe.core.places import placed
from celery_dedupe.core.policy import Policy
from celery_dedupe.core.preimages import content, load
from celery_dedupe.core.rates import check_rate
from celery_dedupe.errors import ConfigurationError

KEY_VERSION = 1
"""Part of every key. Raise it with any change that gives an equal call another key."""


@dataclass(frozen=True, slots=True)
class Key:
    """The name of a lock.

    Attributes:
        text: the key in the store, ``prefix:scope:digest``; its length does not depend on the arguments. That
            of a named store has the name and a slash in front, which the store itself does not see.
        preimage: what the digest is of, for people to read. It holds the arguments, so treat it as private.
    """

    text: str
    preimage: str


def make_key(call: Call, policy: Policy, *, prefix: str) -> Key:
    """Return the key of ``call`` under ``policy``.

    Two calls have one key exactly where their scope, and the arguments that count, are equal after Celery's
    JSON: ``f(1)``, ``f(x=1)``, ``f(1, y=<default>)`` are one; ``1``, ``"1"``, ``True``, ``1.0`` are four.

    Raises:
        UnkeyableArguments: an argument that counts has no canonical form, or cannot be told from the call.
        ConfigurationError: the policy's key asks for what the task does not have, or cannot be imported.
    """
    scope = call.task if policy.scope is None else policy.scope
    preimage = f"[{KEY_VERSION},{quoted(scope)},{quoted(policy.part)},{content(call, policy)}]"
    digest = sha256(encoded(preimage)).hexdigest()[:32]
    return Key(placed(f"{prefix}:{readable(scope)}:{digest}", policy.store), preimage)


def check_policy(policy: Policy, signature: inspect.Signature | None, where: str) -> None:
    """Check what only the task itself can tell: that it has the arguments that ``key`` and ``params`` name.

    Raises:
        ConfigurationError: it has not, ``params`` are in another order, or the function of a key or a rate
            cannot be imported or asked. The message begins with ``where``.
    """
    if isinstance(policy.key, Dotted):
        load(policy.key, where)
    check_rate(policy.rate, where)
    if signature is None:
        return
    check_names(_names(policy), signature, f"{where}: key")
    if policy.params is not None:
        check_names(policy.params, signature, f"{where}: params")
        order = positional(signature)
        if any(mine != its for mine, its in zip(policy.params, order, strict=False)):
            raise ConfigurationError(
                f"{where}: params {list(policy.params)} must be in the task's own order {list(order)}"
            )


def _names(policy: Policy) -> tuple[str, ...]:
    if isinstance(policy.key, Template):
        return tuple(part.name for part in policy.key.parts if isinstance(part, Field))
    return policy.key if isinstance(policy.key, tuple) else ()


@lru_cache(maxsize=4096)
def readable(scope: str) -> str:
    """The part of a key that tells its scope; ``unquote`` gives it back."""
    return quote(scope, safe="", errors="surrogatepass").replace("~", "%7E")
