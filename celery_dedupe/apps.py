"""``INSTALLED_APPS = ["celery_dedupe"]``: the extension on the project's Celery app, and its system checks.

Settings are Celery's own, by its namespace: ``CELERY_DEDUPE_RULES`` and so on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from celery import Celery, _state
from celery.app.utils import find_app
from django.apps import AppConfig
from django.core import checks

from celery_dedupe.errors import ConfigurationError
from celery_dedupe.extension import Dedupe

TAG = "celery_dedupe"
SKIP_CHECKS = "CELERY_SKIP_CHECKS"


class CeleryDedupeConfig(AppConfig):
    """Does ``Dedupe(app).init_app()`` when Django is ready. Where the project does it too: no effect."""

    name = "celery_dedupe"
    verbose_name = "Celery dedupe"

    def ready(self) -> None:
        """Attach to the project's app. One that cannot be found is told by a check, not by an error."""
        checks.register(check_project, TAG)
        with suppress(LookupError):
            _attach()


def project_app() -> Any:
    """Return the current Celery app, if one has been made; else the one that ``celery -A PROJECT`` finds.

    The project is the package of the settings module, or one above it.

    Raises:
        LookupError: there is none; the message says where it was looked for.
    """
    # Not celery.current_app: that makes an app of its own where there is none, which then stays the default.
    state: Any = _state  # celery's published types leave out what is used of it here
    current: Any = state._tls.current_app or state.default_app
    if current is not None and current.set_as_current:
        return current
    seen = []
    for package in _packages(os.environ.get("DJANGO_SETTINGS_MODULE", "")):
        name = f"{package}.celery"
        try:
            name = name if find_spec(name) else package
            found: Any = find_app(name, imp=import_module)
        except Exception as error:  # noqa: BLE001 - whatever the project's module raises: a check tells it
            seen.append(f"{name} ({type(error).__name__}: {error})")
        else:
            if isinstance(found, Celery):
                return found
            seen.append(name)
    raise LookupError(", ".join(seen) or "no package: DJANGO_SETTINGS_MODULE names none")


def check_project(**_: Any) -> list[checks.CheckMessage]:
    """The system check: the Celery app, its ``dedupe_*`` settings, and the rules of each of its tasks."""
    try:
        dedupe = _attach()
    except LookupError as error:
        told = f"celery-dedupe finds no Celery app: looked in {error}"
        hint = "Make the app in PROJECT/celery.py, or write Dedupe(app).init_app() where you make it."
        return [checks.Warning(told, hint=hint, id=f"{TAG}.W001")]
    try:
        dedupe.guard  # noqa: B018 - reads the settings and opens the store: what is wrong shows here
    except Exception as error:  # noqa: BLE001 - the app's own configuration may be wrong, too
        return [_error(dedupe, error)]
    try:
        names = _load_tasks(dedupe.app)
    except Exception as error:  # noqa: BLE001 - whatever a module of tasks raises
        told = f"celery-dedupe cannot check rules against tasks: {type(error).__name__}: {error}"
        return [checks.Warning(told, hint="See the module that raised it.", id=f"{TAG}.W002")]
    return list(_check_tasks(dedupe, names))


def _attach() -> Dedupe:
    return Dedupe(project_app()).init_app()


def _packages(module: str) -> Iterator[str]:
    """Packages around a module, the nearest first."""
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def _load_tasks(app: Any) -> list[str]:
    """Import what a worker imports, and return the names of all tasks."""
    before = os.environ.get(SKIP_CHECKS, "")
    # Celery's Django fixup would run all checks for it, of which this is one. To it, empty is not set.
    os.environ[SKIP_CHECKS] = "true"
    try:
        app.loader.import_default_modules()
    finally:
        os.environ[SKIP_CHECKS] = before
    return sorted(app.tasks)


def _check_tasks(dedupe: Dedupe, names: list[str]) -> Iterator[checks.CheckMessage]:
    for name in names:
        try:
            dedupe.policies(name)
        except ConfigurationError as error:  # noqa: PERF203 - each task's mistake is told
            yield _error(dedupe, error)


def _error(dedupe: Dedupe, error: Exception) -> checks.CheckMessage:
    if not isinstance(error, ConfigurationError):
        told = f"the configuration of the Celery app cannot be read: {type(error).__name__}: {error}"
        return checks.Error(told, id=f"{TAG}.E002")
    prefix = dedupe.app.conf.prefix or ""
    hint = f"In the Django settings dedupe_rules is {prefix}DEDUPE_RULES, and so on." if prefix else None
    return checks.Error(str(error), hint=hint, id=f"{TAG}.E001")
