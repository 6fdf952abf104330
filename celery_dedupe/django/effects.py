"""The effect that happens once: a row in the transaction of Django's ORM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router, transaction
from django.utils import timezone

from celery_dedupe.core.effect import TABLE, effect_name
from celery_dedupe.errors import ConfigurationError

_ROW = f"INTO {TABLE} (kind, object_id, created_at) VALUES (%s, %s, %s)"
# Each writes nothing where the row is there, and breaks no transaction by it.
_INSERTS = {
    "postgresql": f"INSERT {_ROW} ON CONFLICT DO NOTHING",
    "sqlite": f"INSERT {_ROW} ON CONFLICT DO NOTHING",
    "mysql": f"INSERT IGNORE {_ROW}",
}


@contextmanager
def effect_once(kind: str, object_id: str | int | UUID, using: str | None = None) -> Iterator[bool]:
    """Yield ``True`` to the first that asks for an effect and ``False`` to every other.

    The first writes a row in the ``atomic`` block around, so the effect and the row share its fate: a commit
    keeps both, a rollback takes both back, and the next that asks is the first again. Whoever asks while the
    first's transaction is open waits for its end, then gets ``False`` after a commit and ``True`` after a
    rollback.

    The block is a savepoint. An error that leaves it takes back the row and what the block wrote, and is
    raised again; the transaction can go on, and where the caller swallows the error the effect has not
    happened.

    At REPEATABLE READ and SERIALIZABLE, PostgreSQL cannot show this transaction a row that was committed
    after its snapshot: it raises a serialization failure (40001), and the transaction is to be run again.

    Arguments:
        kind: what happens, 1 to 100 characters: ``"welcome mail"``.
        object_id: what it happens to, 1 to 255 characters. Numbers and UUIDs are taken as text.
        using: the database, PostgreSQL, MySQL with InnoDB, MariaDB or SQLite; that of the effect's other
            rows. By default the one that Django's routers name for ``Effect``.

    Raises:
        TypeError, ValueError: ``kind`` or ``object_id`` cannot be stored as they are.
        TransactionManagementError: there is no ``atomic`` block around.
        ImproperlyConfigured: ``celery_dedupe.django`` is not in ``INSTALLED_APPS``.
        ConfigurationError: the database is of another kind.
        django.db.OperationalError: the database does not let this transaction wait any longer, or ends a
            deadlock with it.
    """
    name = effect_name(kind, object_id)
    using = using or router.db_for_write(_model())
    connection = connections[using]
    if connection.vendor not in _INSERTS:
        raise ConfigurationError(
            f"effect_once does not know {connection.vendor}; use postgresql, mysql, mariadb or sqlite"
        )
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError(
            "effect_once needs a transaction, whose fate the effect and its row share: put it, and what it "
            f"guards, in `with transaction.atomic(using={using!r}):`"
        )
    now = connection.ops.adapt_datetimefield_value(timezone.now())
    with transaction.atomic(using=using):
        with connection.cursor() as cursor:
            cursor.execute(_INSERTS[connection.vendor], [*name, now])
            first = cursor.rowcount == 1
        yield first


def _model() -> Any:
    try:
        return apps.get_model("celery_dedupe_effects", "Effect")
    except LookupError:
        raise ImproperlyConfigured(
            'effect_once has no table: add "celery_dedupe.django" to INSTALLED_APPS and run manage.py migrate'
        ) from None
