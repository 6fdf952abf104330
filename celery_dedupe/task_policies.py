"""Which policies a task has: a call's own over the task's own, or over those of the rule that names it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

from celery.local import maybe_evaluate

from celery_dedupe import messages
from celery_dedupe.core.addresses import check_stores
from celery_dedupe.core.call import Call
from celery_dedupe.core.keys import check_policy, make_key
from celery_dedupe.core.policy import Policy, overlay, parse_policies
from celery_dedupe.core.rules import Match
from celery_dedupe.settings import Settings


class Configured(Protocol):
    """A Celery app and its settings, which are read on first use."""

    app: Any  # A Celery app; celery's published types leave out what is used of it here.

    @property
    def settings(self) -> Settings:
        """The settings. Raises ``ConfigurationError``."""


class TaskPolicies:
    """Resolves each task once, when it is first asked about."""

    def __init__(self, configured: Configured) -> None:
        self._configured = configured
        self._resolved: dict[str, Match] = {}
        self._in_force: dict[str, tuple[Policy, ...]] = {}
        self._signatures: dict[str, inspect.Signature | None] = {}

    def policies(self, task: str, override: Any = None) -> tuple[Policy, ...]:
        """The policies of a task, with a call's own laid over them; none in mode off.

        Raises ``ConfigurationError``.
        """
        if override is None and (known := self._in_force.get(task)) is not None:
            return known  # One look into a dictionary is all that a publish without a rule costs.
        settings = self._configured.settings
        if settings.mode == "off":
            return ()
        found = self.match(task).policies
        if override is not None:
            where = f"dedupe= of a call of {task}"
            found = overlay(found, override, where=where, defaults=settings.defaults, named=settings.policies)
            check_stores(found, settings.stores, where)
        if settings.mode == "observe":
            found = tuple(map(_observing, found))
        if override is None and task in self._resolved:
            self._in_force[task] = found
        return found

    def match(self, task: str) -> Match:
        """What decides for a task, a rule or its own option; whatever the mode.

        Raises ``ConfigurationError``.
        """
        return self._resolved.get(task) or self._resolve(task)

    def signature(self, task: str) -> inspect.Signature | None:
        """The signature that callers of a task see; ``None`` where the task is unknown here."""
        return self._signatures.get(task)

    def keys(self, call: Call, policies: Sequence[Policy]) -> tuple[str, ...]:
        """One key a policy."""
        prefix = self._configured.settings.prefix
        return tuple(make_key(call, policy, prefix=prefix).text for policy in policies)

    def guarded(self) -> dict[str, tuple[Policy, ...]]:
        """The tasks that have any, of those asked about."""
        return {name: match.policies for name, match in self._resolved.items() if match.policies}

    def forget(self) -> None:
        """Resolve every task anew, by settings that are read anew."""
        self._resolved.clear()
        self._in_force.clear()
        self._signatures.clear()

    def _resolve(self, name: str) -> Match:
        settings = self._configured.settings
        task = self._task(name)
        own = getattr(task, "dedupe", None)
        if own is not None:
            where = f"dedupe= of task {name}"
            policies = parse_policies(own, where=where, defaults=settings.defaults, named=settings.policies)
            match = Match(where, policies)
            if settings.mode != "off":
                check_stores(policies, settings.stores, where)
        else:
            match = settings.rules.resolve(name)
            where = f"dedupe_rules[{match.rule!r}]"
        if task is not None:
            signature = messages.signature_of(task)
            for policy in match.policies:
                check_policy(policy, signature, f"{where} for task {name}")
            self._signatures[name] = signature
            # Only now: a task that is unknown yet may bring a signature and policies of its own.
            self._resolved[name] = match
        return match

    def _task(self, name: str) -> Any:
        """The task of that name; ``None`` if it is unknown here."""
        app = self._configured.app
        if name not in app._tasks and app.autofinalize:
            # Not ``app.tasks``: a publish by name must not finalize the app. A task that the program has
            # defined and not used yet is pending until then, and has a signature all the same.
            with app._finalize_mutex:
                for pending in list(app._pending):
                    maybe_evaluate(pending)
        return app._tasks.get(name)


@lru_cache(maxsize=1000)
def _observing(policy: Policy) -> Policy:
    return replace(policy, observe=True)
