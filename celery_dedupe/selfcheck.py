"""What a worker says of itself when it is ready: that all is in place, or what is not and how to mend it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from celery.app.trace import task_has_custom

from celery_dedupe.core.findings import Finding
from celery_dedupe.core.policy import Policy
from celery_dedupe.core.suspicions import suspicions
from celery_dedupe.core.versions import shortcomings
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.settings import Settings
from celery_dedupe.store.named import Place
from celery_dedupe.store.protocol import NotSetUp

logger = logging.getLogger("celery_dedupe")

REDELIVERS_AFTER = {"redis": 3600.0, "rediss": 3600.0, "sentinel": 3600.0, "sqs": 1800.0}  # kombu's defaults


def refuse_unready(place: Place) -> None:
    """Raise ``NotSetUp`` if somebody has to make the store ready first. One that is away may come back."""
    try:
        place.facts()
    except NotSetUp:
        raise
    except StoreUnavailable:
        pass


@dataclass(frozen=True, slots=True)
class Checked:
    """What the self-check of one process says. ``place`` is where claims live, for people."""

    place: str
    findings: Sequence[Finding]


def check(
    app: Any,
    settings: Settings,
    places: Iterable[Place],
    tasks: Mapping[str, Iterable[Policy]],
    gone: Iterable[str],
) -> Checked:
    """Look at this process, its settings and the stores.

    Arguments:
        places: the stores.
        tasks: the policies of each task that has any.
        gone: what init_app attached and somebody has taken away since.
    """
    found = [
        Finding("error", f"{name} is no longer attached: call init_app after whatever replaces it")
        for name in gone
    ]
    found += [
        Finding(
            "error",
            f"{name} runs even if it is refused: its class has got another before_start since worker_init",
        )
        for name in tasks
        if not _has_seam(app.tasks[name])
    ]
    claims, servers = [], []
    for place in places:
        there = {name: [one for one in some if one.store == place.name] for name, some in tasks.items()}
        suspect, server = _look(app, place, there)
        found += suspect
        servers.append(server)
        claims.append(f"{server} at {settings.stores[place.name]!r}")
    found += shortcomings(
        celery=version("celery"),
        servers=servers,
        results_client=version("redis") if _subscribes_in_redis(app.backend) else None,
        limited=[name for name in tasks if _ends_hard(app.tasks[name], tasks[name])],
    )
    return Checked(" and in ".join(claims), found)


def report(app: Any, settings: Settings, tasks: Collection[str], checked: Checked) -> None:
    """Log one line if all is well, else a warning for each thing that is not."""
    for finding in checked.findings:
        logger.warning("celery-dedupe: %s", finding.text)
    if not checked.findings:
        logger.info(
            "celery-dedupe: all in place: %s, %d of %d tasks under a rule, claims in %s",
            settings.mode, len(tasks), len(app.tasks), checked.place,
        )  # fmt: skip


def _look(app: Any, place: Place, tasks: Mapping[str, Iterable[Policy]]) -> tuple[list[Finding], str]:
    """What is suspicious of a store and of the locks in it, and what it is."""
    try:
        facts = place.facts()
    except StoreUnavailable as error:
        text = f"{error}; until it does, policies decide whether tasks go on unprotected"
        return [Finding("error", text)], "a store that does not answer"
    return suspicions(
        tasks,
        facts,
        visibility_timeout=_visibility_timeout(app),
        private_results=app.backend.as_uri().startswith("rpc:"),
    ), facts.name


def _has_seam(task: Any) -> bool:
    return bool(task_has_custom(task, "before_start")) and hasattr(type(task).before_start, "dedupe_seam")


def _subscribes_in_redis(backend: Any) -> bool:
    return backend.as_uri().startswith(("redis", "sentinel")) and hasattr(backend, "result_consumer")


def _ends_hard(task: Any, policies: Iterable[Policy]) -> bool:
    limit = task.time_limit or task.app.conf.task_time_limit
    return bool(limit) and any(policy.traits.runs for policy in policies)


def _visibility_timeout(app: Any) -> float | None:
    # It connects to nothing. broker_url may be a list, or not the one that is read from.
    broker = app.connection_for_read()
    default = REDELIVERS_AFTER.get(broker.transport_cls.lower())
    return None if default is None else float(broker.transport_options.get("visibility_timeout", default))
