"""What every command has in common: the app's extension, ``--json``, exit codes."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import click

from celery_dedupe.errors import ConfigurationError, StoreUnavailable, UnkeyableArguments
from celery_dedupe.extension import ATTRIBUTE, Dedupe

NO = 1  # the exit code of a command whose answer is no


class Wrong(click.ClickException):
    """A wrong use or a wrong setting."""

    exit_code = 2


class Away(click.ClickException):
    """The claim store does not answer."""

    exit_code = 3


class Commands(click.Group):
    """A group in which the errors of the extension end a command with one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ConfigurationError, UnkeyableArguments) as error:
            raise Wrong(str(error)) from None
        except StoreUnavailable as error:
            raise Away(str(error)) from None


def command(function: Callable[..., Any]) -> click.Command:
    """A command that is called with the app's extension and with ``as_json``, the option ``--json``."""

    def run(context: click.Context, /, **options: Any) -> Any:
        return function(_extension(context), **options)

    option = click.option("--json", "as_json", is_flag=True, help="For programs: JSON instead of text.")
    return click.command()(option(click.pass_context(update_wrapper(run, function))))


def _extension(context: click.Context) -> Dedupe:
    app = context.obj.app
    # As a worker does it: now all tasks are known, and Django is set up.
    app.loader.import_default_modules()
    app.finalize()
    found: Dedupe | None = getattr(app, ATTRIBUTE, None)
    if found is None:
        raise Wrong(
            f"the app {app.main or app!r} has no celery-dedupe: name it by celery -A, "
            "and let its module call Dedupe(app).init_app()"
        )
    return found
