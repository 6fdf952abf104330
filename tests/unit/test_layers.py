"""Who may import whom: the rooms of the design, kept by reading every import in the package."""

from __future__ import annotations

import ast
import sys
from fnmatch import fnmatchcase
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import celery_dedupe

ROOT = Path(celery_dedupe.__file__).parent
PACKAGE = "celery_dedupe"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(module: str) -> set[str]:
    """The full names of all that the module imports, wherever in its text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(PATHS[module].read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they lead"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in PATHS else str(node.module))
    return found


IMPORTS = {module: imports(module) for module in PATHS}


def third_parties(module: str) -> set[str]:
    tops = {name.partition(".")[0] for name in IMPORTS[module]}
    return tops - set(sys.stdlib_module_names) - {PACKAGE}


def ours(module: str) -> set[str]:
    return {name for name in IMPORTS[module] if name.partition(".")[0] == PACKAGE}


def in_room(room: str) -> list[str]:
    return [module for module in PATHS if f"{module}.".startswith(f"{PACKAGE}.{room}.")]


ALLOWED = {
    "redis": ["store.redis*"],
    "blinker": ["signals"],
    "celery": [
        "cli",
        "inspection",
        "extension",
        "periods",
        "receivers",
        "task_policies",
        "gates.*",
        "messages",
        "endings",
        "selfcheck",
        "opentelemetry",
        "apps",
    ],
    "billiard": ["endings", "interrupts"],
    "click": ["cli*"],
    "kombu": ["core.canonical"],
    "django": ["apps", "django.*"],
    "sqlalchemy": ["effects", "store.sql*", "tables"],
    "opentelemetry": ["opentelemetry"],
    "prometheus_client": ["prometheus"],
    "pytest": ["testing"],
}


def allowed(module: str, rooms: list[str]) -> bool:
    return any(fnmatchcase(module, f"{PACKAGE}.{room}") for room in rooms)


@pytest.mark.parametrize("module", PATHS)
def test_a_package_is_imported_only_where_it_belongs(module):
    misplaced = [name for name in third_parties(module) if not allowed(module, ALLOWED.get(name, []))]
    assert not misplaced


@pytest.mark.parametrize(
    ("package", "room"), [(name, room) for name, rooms in ALLOWED.items() for room in rooms]
)
def test_the_table_names_nothing_that_is_not_so(package, room):
    assert any(package in third_parties(module) for module in PATHS if allowed(module, [room]))


@pytest.mark.parametrize("module", in_room("core"))
def test_the_core_is_pure(module):
    """No clock, no I/O, no Celery app, no Redis."""
    assert {name for name in ours(module) if not f"{name}.".startswith(f"{PACKAGE}.core.")} <= {
        f"{PACKAGE}.errors"
    }
    impure = {
        "time",
        "random",
        "secrets",
        "os",
        "io",
        "socket",
        "threading",
        "logging",
        "asyncio",
        "subprocess",
    }
    assert not impure & {name.partition(".")[0] for name in IMPORTS[module]}


@pytest.mark.parametrize("module", in_room("core"))
def test_the_core_takes_only_json_from_kombu(module):
    assert {name for name in IMPORTS[module] if name.startswith("kombu")} <= {"kombu.utils.json"}


@pytest.mark.parametrize(
    ("room", "may_import"),
    [
        ("errors", []),
        ("store", ["core", "errors", "store", "tables"]),
        ("signals", ["core"]),
        ("buffer", ["errors"]),
        ("counters", ["buffer", "core", "store"]),
        ("heartbeat", ["core", "errors"]),
        ("settings", ["core", "errors"]),
        ("interrupts", []),
        ("messages", ["core"]),
        ("receivers", []),
        ("task_policies", ["core", "messages", "settings"]),
        ("reports", ["core", "heartbeat", "signals"]),
        ("guard", ["core", "counters", "errors", "guard", "heartbeat", "reports", "store"]),
        ("gates", ["core", "errors", "gates", "guard", "heartbeat", "interrupts", "messages"]),
        ("endings", ["core", "gates", "messages"]),
        ("effects", ["core", "errors", "tables"]),
        ("tables", ["core"]),
        ("django", ["core", "django", "errors"]),
        ("apps", ["errors", "extension"]),
        ("periods", ["core", "errors", "extension", "guard"]),
        ("testing", ["core", "errors", "extension", "gates", "signals", "store"]),
        ("inspection", ["core", "errors", "gates", "settings"]),
        ("cli", ["cli", "core", "errors", "extension", "inspection", "store"]),
        ("prometheus", ["core", "errors", "extension"]),
        ("opentelemetry", ["core", "errors", "extension", "gates", "guard", "signals"]),
    ],
)
def test_a_room_knows_only_what_is_below_it(room, may_import):
    below = tuple(f"{PACKAGE}.{name}." for name in may_import)
    for module in in_room(room):
        for name in ours(module):
            assert f"{name}.".startswith(below), f"{module} may not import {name}"


def test_no_module_imports_itself_by_way_of_others():
    tuple(TopologicalSorter({module: ours(module) - {module} for module in PATHS}).static_order())


def test_no_module_has_a_name_that_says_nothing():
    vague = {"utils", "util", "helpers", "helper", "base", "manager", "common", "misc"}
    assert not {module for module in PATHS if vague & set(module.split("."))}
