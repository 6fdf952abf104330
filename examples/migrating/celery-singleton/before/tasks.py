"""The app and its tasks, with celery-singleton."""

from __future__ import annotations

from celery import Celery
from celery_singleton import Singleton
from journal import work

app = Celery("shop")
app.config_from_object("celeryconfig")


@app.task(base=Singleton)
def make_report(customer, colour="blue"):
    work(f"report {customer}")
    return f"{customer}-{colour}.pdf"


@app.task(base=Singleton, unique_on=["account"], raise_on_duplicate=True, lock_expiry=600)
def sync_account(account, reason):
    work(f"sync {account}")


@app.task(bind=True, base=Singleton)
def fetch_feed(self, url):
    work(f"feed {url}")
    if self.request.retries == 0:
        raise self.retry(countdown=0.5)
    return url
