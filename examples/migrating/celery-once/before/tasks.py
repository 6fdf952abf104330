"""The app and its tasks, with celery-once."""

from __future__ import annotations

from celery import Celery
from celery_once import QueueOnce
from journal import work

app = Celery("shop")
app.config_from_object("celeryconfig")


@app.task(base=QueueOnce, once={"graceful": True})
def make_report(customer, colour="blue"):
    work(f"report {customer}")
    return f"{customer}-{colour}.pdf"


@app.task(base=QueueOnce, once={"keys": ["account"], "timeout": 600})
def sync_account(account, reason):
    work(f"sync {account}")


@app.task(base=QueueOnce, once={"keys": [], "graceful": True, "unlock_before_run": True})
def update_index(page):
    work("index")


@app.task(bind=True, base=QueueOnce, once={"graceful": True})
def fetch_feed(self, url):
    work(f"feed {url}")
    if self.request.retries == 0:
        raise self.retry(countdown=0.5)
    return url
