"""The Django apps: each test is a Django project of its own, in processes of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ON_COMMIT = find_spec("celery.contrib.django") is not None

SETTINGS = """
SECRET_KEY = "of a test"
USE_TZ = True
INSTALLED_APPS = ["celery_dedupe", "celery_dedupe.django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite"}}
CELERY_BROKER_URL = "memory://"
CELERY_RESULT_BACKEND = "cache+memory://"
CELERY_DEDUPE_URL = "memory://"
CELERY_DEDUPE_RULES = {"shop.tasks.*": {"lock": "until_finished", "key": ["order"]}}
"""
CELERY = """
from celery import Celery

app = Celery("proj")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""
TASKS = """
from celery import shared_task

@shared_task
def charge(order, colour="blue"):
    return order
"""
MANAGE = "import sys; from django.core.management import execute_from_command_line as run; run(sys.argv)"


class Project:
    """A folder with a Django project ``proj`` and its app ``shop``, which has the task ``charge``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings_module = "proj.settings"
        self.start = "import django\ndjango.setup()\n"
        self.write("proj/__init__.py", "from proj.celery import app as celery_app\n")
        self.write("proj/settings.py", SETTINGS)
        self.write("proj/celery.py", CELERY)
        self.write("shop/__init__.py", "")
        self.write("shop/tasks.py", TASKS)

    def write(self, path: str, text: str, *more: str) -> None:
        place = self.folder / path
        place.parent.mkdir(exist_ok=True, parents=True)
        place.write_text("".join((text, *more)))

    def settings(self, *lines: str) -> None:
        """More lines of settings, after the usual ones."""
        self.write("proj/settings.py", SETTINGS, *(f"{line}\n" for line in lines))

    def run(self, source: str) -> str:
        """What a program of these lines prints; it has to end well."""
        done = self._python("-c", f"{self.start}{textwrap.dedent(source)}")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._python("-c", MANAGE, *words)

    def check(self) -> str:
        """What ``manage.py check`` says of errors and warnings, in one line."""
        done = self.manage("check", "--tag", "celery_dedupe")
        assert "Traceback" not in done.stderr
        assert bool(done.returncode) == ("ERRORS" in done.stderr)
        return " ".join((done.stdout + done.stderr).split())

    def _python(self, *words: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("CELERY_")}
        env |= {"DJANGO_SETTINGS_MODULE": self.settings_module, "PYTHONPATH": f"{ROOT}:{self.folder}"}
        return subprocess.run(
            [sys.executable, "-W", "error", *words],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def migrated(project: Project) -> Project:
    project.start += "from django.core.management import call_command\ncall_command('migrate', verbosity=0)\n"
    return project


def usual(project: Project) -> None:
    pass


def not_imported_by_the_package(project: Project) -> None:
    project.write("proj/__init__.py", "")


def settings_in_a_package(project: Project) -> None:
    not_imported_by_the_package(project)
    (project.folder / "proj/settings.py").unlink()
    project.write("proj/settings/__init__.py", "")
    project.write("proj/settings/celery.py", "beat = 7\n")
    project.write("proj/settings/production.py", SETTINGS)
    project.settings_module = "proj.settings.production"


def app_in_another_module(project: Project) -> None:
    (project.folder / "proj/celery.py").unlink()
    project.write("proj/celery_app.py", CELERY)
    project.write("proj/__init__.py", "from proj.celery_app import app as celery_app\n")


def app_that_is_not_the_current_one(project: Project) -> None:
    not_imported_by_the_package(project)
    project.write("proj/celery.py", CELERY.replace('"proj"', '"proj", set_as_current=False'))


def celery_asked_before_there_is_an_app(project: Project) -> None:
    # Celery makes an app by itself for who asks too early.
    not_imported_by_the_package(project)
    project.write("shop/__init__.py", "from celery import current_app\ncurrent_app.conf.timezone\n")


def one_liner_too(project: Project) -> None:
    project.write("proj/celery.py", CELERY, "from celery_dedupe import Dedupe\nDedupe(app).init_app()\n")


class TestTheAppIsFound:
    @pytest.mark.parametrize(
        "arrange",
        [
            usual,
            not_imported_by_the_package,
            settings_in_a_package,
            app_in_another_module,
            app_that_is_not_the_current_one,
            celery_asked_before_there_is_an_app,
            one_liner_too,
        ],
        ids=lambda arrange: arrange.__name__,
    )
    def test_installed_apps_are_enough(self, project: Project, arrange: Callable[[Project], None]) -> None:
        arrange(project)
        module = "proj.celery_app" if arrange is app_in_another_module else "proj.celery"
        project.run(
            f"""
            from {module} import app
            assert app.dedupe.policies("shop.tasks.charge")[0].key == ("order",)

            app.set_current()
            from celery_dedupe import duplicate_of
            from shop.tasks import charge
            first, second = charge.delay(1), charge.delay(1, "red")
            assert second.id == first.id and duplicate_of(second).task_id == first.id
            assert duplicate_of(charge.delay(2)) is None

            from django.core.checks import run_checks
            assert run_checks(tags=["celery_dedupe"]) == []
            """
        )

    def test_both_ways_at_once_are_one_extension(self, project: Project) -> None:
        one_liner_too(project)
        project.run(
            """
            from celery import signals
            from proj.celery import app
            from celery_dedupe import Dedupe

            assert Dedupe(app).init_app() is app.dedupe
            ours = [key for key, _ in signals.before_task_publish.receivers if "celery_dedupe" in str(key)]
            assert len(ours) == 1
            """
        )

    def test_what_the_one_liner_says_holds(self, project: Project) -> None:
        line = "from celery_dedupe import Dedupe\nDedupe(app, rules={'shop.*': 'once'}).init_app()\n"
        project.write("proj/celery.py", CELERY, line)
        project.run(
            """
            from proj.celery import app
            assert [policy.lock for policy in app.dedupe.policies("shop.tasks.charge")] == ["once"]
            """
        )

    def test_a_celery_py_that_sets_django_up_itself_is_found_by_the_check(self, project: Project) -> None:
        not_imported_by_the_package(project)
        project.write("proj/celery.py", "import django\ndjango.setup()\n", CELERY)
        assert "no issues" in project.check()

    def test_without_an_app_there_is_a_warning_and_nothing_else(self, project: Project) -> None:
        project.write("proj/__init__.py", "")
        (project.folder / "proj/celery.py").unlink()
        told = project.check()
        assert "(celery_dedupe.W001) celery-dedupe finds no Celery app: looked in proj" in told
        assert "HINT: Make the app in PROJECT/celery.py, or write Dedupe(app).init_app()" in told
        project.run(
            """
            from celery import _state
            assert _state.default_app is None, "none was made by looking for one"
            from celery import Celery
            late = Celery("late")
            from celery import current_app
            assert current_app._get_current_object() is late
            """
        )

    def test_a_broken_celery_py_is_told_and_does_not_stop_manage_py(self, project: Project) -> None:
        project.write("proj/__init__.py", "")
        project.write("proj/celery.py", "import nowhere_to_be_found\n")
        assert "proj.celery (ModuleNotFoundError: No module named 'nowhere_to_be_found')" in project.check()
        assert project.manage("migrate", "--verbosity=0").returncode == 0

    def test_a_program_that_configures_django_by_itself(self, project: Project) -> None:
        project.start = ""
        told = project.run(
            """
            import os
            import django
            from django.conf import settings
            from django.core.checks import run_checks

            settings.configure(INSTALLED_APPS=["celery_dedupe"])
            del os.environ["DJANGO_SETTINGS_MODULE"]
            django.setup()
            print(run_checks(tags=["celery_dedupe"]))
            os.environ["DJANGO_SETTINGS_MODULE"] = "gone.settings"
            print(run_checks(tags=["celery_dedupe"]))
            """
        )
        assert "looked in no package: DJANGO_SETTINGS_MODULE names none" in told
        assert "looked in gone.celery (ModuleNotFoundError: No module named 'gone')" in told


class TestChecks:
    def test_a_bad_rule_is_an_error_and_no_traceback(self, project: Project) -> None:
        project.settings('CELERY_DEDUPE_RULES = {"shop.*": {"lock": "until_finished", "leese": 5}}')
        told = project.check()
        assert (
            "(celery_dedupe.E001) dedupe_rules['shop.*']: unknown field 'leese'; did you mean 'lease'" in told
        )
        assert "HINT: In the Django settings dedupe_rules is CELERY_DEDUPE_RULES, and so on." in told
        assert project.run("print('goes on')") == "goes on\n"
        done = project.manage("check")
        assert done.returncode == 1
        assert "celery_dedupe.E001" in done.stderr

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("CELERY_DEDUPE_RULEZ = {}", "CELERY_DEDUPE_RULEZ is no setting; did you mean"),
            ("del CELERY_DEDUPE_URL", "dedupe_url is not set, and Celery's own servers are not Redis"),
            ('CELERY_DEDUPE_STORE_OPTIONS = {"nonsense": 1}; CELERY_DEDUPE_URL = "redis://x"', "nonsense"),
        ],
    )
    def test_each_bad_setting_is_an_error(self, project: Project, line: str, told: str) -> None:
        project.settings(line)
        found = project.check()
        assert "celery_dedupe.E001" in found
        assert told in found

    def test_rules_are_checked_against_tasks_that_nothing_has_imported(self, project: Project) -> None:
        second = TASKS.replace("charge", "refund").replace("order", "payment")
        project.write("shop/tasks.py", TASKS, second, second.replace("refund", "revert"))
        told = project.check()
        assert "for task shop.tasks.refund" in told
        assert "for task shop.tasks.revert" in told
        assert "for task shop.tasks.charge" not in told

    def test_imports_in_celery_s_settings_are_loaded_too(self, project: Project) -> None:
        project.write("shop/jobs.py", TASKS.replace("order", "payment"))
        project.settings(
            'CELERY_IMPORTS = ["shop.jobs"]; CELERY_DEDUPE_RULES["shop.jobs.*"] = {"key": ["order"]}'
        )
        assert "for task shop.jobs.charge" in project.check()

    def test_what_a_worker_does_not_import_is_not_imported(self, project: Project) -> None:
        project.write("stock/__init__.py", "")
        project.write("stock/tasks.py", "import nowhere_to_be_found\n")
        project.settings('INSTALLED_APPS += ["stock"]')
        assert "celery_dedupe.W002" in project.check()
        project.write("proj/celery.py", CELERY.replace("tasks()", 'tasks(["shop"])'))
        assert "no issues" in project.check()

    def test_tasks_that_cannot_be_imported_are_a_warning(self, project: Project) -> None:
        project.write("shop/tasks.py", "import nowhere_to_be_found\n")
        told = project.check()
        assert "(celery_dedupe.W002) celery-dedupe cannot check rules against tasks: ModuleNotF" in told

    def test_a_celery_app_that_cannot_be_configured_is_an_error(self, project: Project) -> None:
        project.write("proj/celery.py", CELERY.replace("django.conf:settings", "nowhere:settings"))
        told = project.check()
        assert (
            "(celery_dedupe.E002) the configuration of the Celery app cannot be read: ModuleNotFound" in told
        )

    def test_switched_off_it_needs_nothing(self, project: Project) -> None:
        project.settings("del CELERY_DEDUPE_URL", 'CELERY_DEDUPE_MODE = "off"')
        assert "no issues" in project.check()

    def test_a_worker_that_runs_the_checks_is_checked_once(self, project: Project) -> None:
        # Celery's fixup runs all checks when a worker imports its tasks.
        project.write("shop/apps.py", COUNTED_CHECK)
        source = "from proj.celery import app; app.loader.import_default_modules()"
        assert project.run(source) == "checked\n"
        # Nor does the check make Celery run all checks again.
        assert project.manage("check").stdout.count("checked") == 1


COUNTED_CHECK = """
from django.apps import AppConfig
from django.core import checks

class ShopConfig(AppConfig):
    name = "shop"

    def ready(self):
        checks.register(lambda **_: print("checked") or [], "shop")
"""


class TestDelayOnCommit:
    @pytest.mark.skipif(not ON_COMMIT, reason="it came with Celery 5.4")
    def test_a_rollback_claims_nothing_and_a_commit_claims(self, migrated: Project) -> None:
        """Case 6."""
        migrated.run(
            """
            from celery.contrib.django.task import DjangoTask
            from django.db import transaction
            from celery_dedupe import duplicate_of
            from proj.celery import app
            from shop.tasks import charge

            def claims():
                return [key for key, _ in app.dedupe.guard.store.scan("*")]

            assert isinstance(charge._get_current_object(), DjangoTask)
            try:
                with transaction.atomic():
                    charge.delay_on_commit(1)
                    raise KeyError
            except KeyError:
                pass
            assert claims() == []

            with transaction.atomic():
                charge.delay_on_commit(1)
                charge.apply_async_on_commit((1,))
                assert claims() == [], "nothing before the commit"
            assert len(claims()) == 1
            assert duplicate_of(charge.delay(1))
            """
        )


class TestEffectOnce:
    def test_true_once_and_gone_with_a_rollback(self, migrated: Project) -> None:
        migrated.run(
            """
            from uuid import UUID
            from django.db import transaction
            from celery_dedupe.django import effect_once
            from celery_dedupe.django.models import Effect

            def ask(object_id="a"):
                with effect_once("mail", object_id) as first:
                    return first

            with transaction.atomic():
                assert ask() is True
                assert ask() is False
                transaction.set_rollback(True)
            with transaction.atomic():
                assert ask() is True
            with transaction.atomic():
                found = [ask(object_id) for object_id in ("a", "A", 7, "7", UUID(int=1))]
                assert found == [False, True, True, False, True]
            assert Effect.objects.count() == 4
            found = Effect.objects.get(object_id="a")
            assert (found.kind, str(found)) == ("mail", "mail: a")
            age = django.utils.timezone.now() - found.created_at
            assert 0 <= age.total_seconds() < 60
            """
        )

    def test_a_body_that_fails_takes_its_row_back(self, migrated: Project) -> None:
        migrated.run(
            """
            from django.db import transaction
            from celery_dedupe.django import effect_once
            from celery_dedupe.django.models import Effect

            def charge(order, fails):
                with effect_once("charge", order) as first:
                    Effect.objects.create(kind="written by", object_id=f"the body, first: {first}")
                    if fails:
                        raise KeyError

            with transaction.atomic():
                for _ in range(2):
                    try:
                        charge("a", fails=True)
                    except KeyError:
                        pass
                    else:
                        assert False, "the error is the caller's"
                    assert not Effect.objects.exists()
                charge("a", fails=False)
                try:
                    charge("a", fails=True)
                except KeyError:
                    pass
            told = [str(effect) for effect in Effect.objects.order_by("id")]
            assert told == ["charge: a", "written by: the body, first: True"], told
            """
        )

    def test_outside_a_transaction_it_says_what_to_do(self, migrated: Project) -> None:
        migrated.run(
            """
            from django.db.transaction import TransactionManagementError
            from celery_dedupe.django import effect_once
            from celery_dedupe.django.models import Effect

            try:
                with effect_once("mail", "a"):
                    assert False, "the body does not run"
            except TransactionManagementError as error:
                assert "with transaction.atomic(using='default'):" in str(error)
            assert Effect.objects.count() == 0
            """
        )

    def test_without_its_app_it_says_what_to_do(self, project: Project) -> None:
        project.settings('INSTALLED_APPS = ["shop"]')
        project.run(
            """
            from django.core.exceptions import ImproperlyConfigured
            from django.db import transaction
            from celery_dedupe.django import effect_once

            try:
                with transaction.atomic(), effect_once("mail", "a"):
                    assert False, "the body does not run"
            except ImproperlyConfigured as error:
                assert 'add "celery_dedupe.django" to INSTALLED_APPS' in str(error)
            """
        )

    def test_the_database_is_the_router_s_or_the_caller_s(self, migrated: Project) -> None:
        migrated.settings(
            'DATABASES["other"] = {**DATABASES["default"], "NAME": "other.sqlite"}',
            'DATABASES["odd"] = {**DATABASES["default"]}',
            'DATABASE_ROUTERS = ["shop.routers.Router"]',
        )
        migrated.write(
            "shop/routers.py",
            "class Router:\n    def db_for_write(self, model, **hints):\n        return 'other'\n",
        )
        migrated.run(
            """
            from django.db import connections, transaction
            from celery_dedupe import ConfigurationError

            call_command("migrate", verbosity=0, database="other")
            from celery_dedupe.django import effect_once
            from celery_dedupe.django.models import Effect

            with transaction.atomic(using="other"), effect_once("mail", "a") as first:
                assert first
            with transaction.atomic(using="default"), effect_once("mail", "a", using="default") as first:
                assert first
            assert [Effect.objects.using(name).count() for name in ("default", "other")] == [1, 1]

            connections["odd"].vendor = "oracle"
            try:
                with transaction.atomic(using="odd"), effect_once("mail", "a", "odd"):
                    assert False, "the body does not run"
            except ConfigurationError as error:
                assert "does not know oracle; use postgresql" in str(error)
            """
        )


class TestTable:
    def test_the_migration_is_complete(self, project: Project) -> None:
        done = project.manage("makemigrations", "--check", "--dry-run", "celery_dedupe_effects")
        assert (done.returncode, done.stdout) == (0, "No changes detected in app 'celery_dedupe_effects'\n")

    def test_the_database_refuses_a_second_row(self, migrated: Project) -> None:
        migrated.run(
            """
            from django.db import IntegrityError
            from celery_dedupe.django.models import Effect

            Effect.objects.create(kind="mail", object_id="a")
            try:
                Effect.objects.create(kind="mail", object_id="a")
            except IntegrityError:
                pass
            else:
                assert False, "two rows of one effect"
            """
        )

    def test_sqlalchemy_writes_to_the_same_table(self, migrated: Project) -> None:
        migrated.run(
            """
            from sqlalchemy import create_engine
            from celery_dedupe.effects import effect_once
            from celery_dedupe.tables import create_tables, effects
            from celery_dedupe.django.models import Effect

            engine = create_engine("sqlite:///shop.sqlite")
            create_tables(engine, effects)
            with engine.begin() as connection, effect_once(connection, "mail", "a") as first:
                assert first
            engine.dispose()
            found = Effect.objects.get()
            age = django.utils.timezone.now() - found.created_at
            assert str(found) == "mail: a" and abs(age.total_seconds()) < 60
            """
        )


@pytest.mark.skipif(not ON_COMMIT, reason="it came with Celery 5.4")
def test_what_the_documentation_shows_runs(migrated: Project) -> None:
    text = (ROOT / "docs" / "django.md").read_text()
    blocks = re.findall(r"(<!-- runs -->\n)?^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    files = {block.split()[1]: block for runs, block in blocks if not runs}
    assert list(files) == ["proj/settings.py", "proj/celery.py", "shop/tasks.py"]
    project = migrated
    for path, block in files.items():
        project.write(path, SETTINGS if path == "proj/settings.py" else "", block)
    assert "no issues" in project.check()
    project.settings(files["proj/settings.py"], 'CELERY_DEDUPE_URL = "memory://"')

    on_commit, once, delete = (block for runs, block in blocks if runs)
    project.run(
        f"""
{on_commit}
from proj.celery import app
with app.connection_for_read() as connection:
    assert connection.default_channel._size("celery") == 1, "the second call is a duplicate"
        """
    )
    project.run(f"{once}\n{delete}\nassert Effect.objects.count() == 2")


def test_the_documentation_has_every_check() -> None:
    text = (ROOT / "docs" / "django.md").read_text()
    source = (ROOT / "celery_dedupe" / "apps.py").read_text()
    told = re.findall(r"^\| `celery_dedupe\.(\w+)` \|", text, re.MULTILINE)
    assert sorted(told) == sorted(re.findall(r"TAG}\.(\w+)", source))
