"""What docs/stores.md says of URLs and tables is so; its promises have tests in tests/contract."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

from celery import Celery
from sqlalchemy import MetaData, create_engine, inspect

from celery_dedupe import Dedupe, tables
from celery_dedupe.core.urls import SCHEMES, check_url
from celery_dedupe.store.connect import open_store

PAGE = (Path(__file__).parents[2] / "docs" / "stores.md").read_text("utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_table_names_every_scheme():
    head = PAGE.partition("\n\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`([\w+]+)://", head)) == sorted(SCHEMES)


def test_several_stores_are_written_as_it_says():
    app = Celery("stores", set_as_current=False)
    names = {}
    exec(PYTHON[0], names)
    app.conf.update({name: value for name, value in names.items() if name.startswith("dedupe_")})
    dedupe = Dedupe(app).init_app()
    assert [policy.store for policy in dedupe.policies("billing.charge_card")] == ["default", "ledger"]
    assert {type(place.store).__name__ for place in dedupe.guard.store.places.values()} == {
        "RedisStore",
        "SqlStore",
    }
    dedupe.close()


def test_the_url_is_one():
    names = {}
    exec(PYTHON[1], names)
    assert check_url(names["dedupe_url"], where="docs") == names["dedupe_url"]
    open_store(names["dedupe_url"]).close()


def test_the_tables_are_made_as_it_says(tmp_path):
    url = f"sqlite:///{tmp_path}/claims.sqlite"
    names = {"Base": SimpleNamespace(metadata=MetaData())}
    exec(PYTHON[2].replace("db+postgresql+psycopg://user:password@host/database", f"db+{url}"), names)
    engine = create_engine(url)
    assert inspect(engine).get_table_names() == ["celery_dedupe_claims"]
    engine.dispose()
    exec(PYTHON[3], names)
    assert names["target_metadata"][1] is tables.metadata
