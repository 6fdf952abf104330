"""What all commands have in common: where they find the extension, and what they end with."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
from celery import Celery
from celery.bin.celery import celery
from click import Option

from celery_dedupe import Dedupe
from celery_dedupe.cli import dedupe
from celery_dedupe.errors import StoreUnavailable

COMMANDS = {
    "rules": (),
    "explain": ("t",),
    "locks": (),
    "release": (f"dedupe:t:{0:032x}",),
    "stats": (),
    "check": (),
}


def test_every_command_is_here():
    assert dedupe.commands.keys() == COMMANDS.keys()


def test_celery_finds_it():
    (found,) = entry_points(group="celery.commands", name="dedupe")
    assert found.load() is dedupe
    assert celery.commands["dedupe"] is dedupe


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(dedupe_command, name):
    result = dedupe_command(Celery(set_as_current=False), name, "--help")
    assert result.exit_code == 0
    assert "--json" in result.output
    options = [param for param in dedupe.commands[name].params if isinstance(param, Option)]
    assert all(option.help for option in options)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_app_without_the_extension(dedupe_command, name):
    result = dedupe_command(Celery("bare", set_as_current=False), name, *COMMANDS[name])
    assert result.exit_code == 2
    assert result.output == (
        "Error: the app 'bare' has no celery-dedupe: name it by celery -A, and let its module call "
        "Dedupe(app).init_app()\n"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_setting_is_one_line(dedupe_command, name):
    app = Celery("wrong", set_as_current=False)
    extension = Dedupe(app, url="memory://", rules={"t": {"lock": "once", "leese": "5m"}}).init_app()
    result = dedupe_command(app, name, *COMMANDS[name])
    extension.close()
    assert result.exit_code == 2
    assert "rules=...)['t']: unknown field 'leese'; did you mean 'lease'?" in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"rules", "check"}))
def test_a_store_that_is_away(dedupe_command, local_app, monkeypatch, name):
    def away():
        raise StoreUnavailable("the store is away")

    a = local_app({"t": "once"})
    monkeypatch.setattr(a.store, "clock", away)
    result = dedupe_command(a.app, name, *COMMANDS[name])
    assert (result.exit_code, result.output) == (3, "Error: the store is away\n")


def test_the_tasks_of_a_worker_are_there(dedupe_command, local_app, monkeypatch, tmp_path):
    """Those that only ``imports`` or Django's autodiscovery bring, and those that nobody has used yet."""
    a = local_app({"of.*": "once"}, conf={"imports": ["module_of_tasks"]})
    (tmp_path / "module_of_tasks.py").write_text(
        "from celery._state import _get_active_apps\n"
        f"(app,) = [app for app in _get_active_apps() if app.main == {a.app.main!r}]\n"
        "def task(): ...\n"
        "app.task(name='of.a.module', shared=False)(task)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "of.a.module  of.*  once" in dedupe_command(a.app, "rules").output
