"""The fixture ``dedupe`` beside Celery's own fixtures, in a pytest of its own, as a project has it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.processes import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CONFTEST = """
import pytest

pytest_plugins = ["celery.contrib.pytest", "celery_dedupe.testing"]

@pytest.fixture(scope="session")
def celery_config():
    return {"dedupe_rules": {"t.*": "once"}}

@pytest.fixture
def add(celery_app):
    @celery_app.task(name="t.add", shared=False)
    def add(x, y):
        return x + y
    return add
"""


def pytest_in(folder: Path) -> str:
    """Runs the tests of a folder and returns what pytest said."""
    (folder / "pytest.ini").touch()
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-rA", "--tb=line", folder]
    env = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=110)
    return done.stdout + done.stderr


def test_the_example_runs_without_a_server(tmp_path: Path) -> None:
    folder = tmp_path / "testing"
    shutil.copytree(ROOT / "examples" / "testing", folder)

    said = pytest_in(folder)

    assert "4 passed" in said, said


def test_it_works_on_the_app_of_celery_s_own_fixture(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_own.py").write_text("""
def test_ours_first(dedupe, add, celery_worker):
    first = add.delay(1, 2)
    dedupe.assert_dropped(add.delay(1, 2))
    assert first.get(timeout=60) == 3
    dedupe.no_locks_left()

def test_theirs_first(celery_worker, dedupe):
    raise AssertionError("not reached")
""")

    said = pytest_in(tmp_path)

    assert "PASSED test_own.py::test_ours_first" in said, said
    assert "ERROR test_own.py::test_theirs_first" in said
    assert "name the fixture dedupe before celery_worker" in said


def test_a_worker_that_lives_for_the_session_serves_each_test_s_claims(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "testing" / "shop.py", tmp_path)
    (tmp_path / "conftest.py").write_text("""
import pytest

pytest_plugins = ["celery.contrib.pytest", "celery_dedupe.testing"]

@pytest.fixture(scope="session")
def celery_session_app():
    from shop import app
    app.conf.update(broker_url="memory://", result_backend="cache+memory://")
    return app

@pytest.fixture(scope="session")
def celery_includes():
    return ["celery.contrib.testing.tasks"]

@pytest.fixture
def celery_app(celery_session_app):
    return celery_session_app
""")
    (tmp_path / "test_session.py").write_text("""
import pytest
from shop import charge

@pytest.mark.parametrize("time", ["first", "second"])
def test_the_order_is_not_charged_yet(celery_session_worker, dedupe, time):
    assert charge.delay(7).get(timeout=60) == "charged 7"
    dedupe.assert_dropped(charge.delay(7))
    dedupe.no_locks_left()
""")

    said = pytest_in(tmp_path)

    assert "2 passed" in said, said
