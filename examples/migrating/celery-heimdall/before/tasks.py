"""The app and its tasks, with celery-heimdall."""

from __future__ import annotations

from celery import Celery
from celery_heimdall import HeimdallTask, RateLimit
from journal import work

app = Celery("shop")
app.config_from_object("celeryconfig")


@app.task(base=HeimdallTask, heimdall={"unique": True})
def make_report(customer, colour="blue"):
    work(f"report {customer}")
    return f"{customer}-{colour}.pdf"


@app.task(
    base=HeimdallTask,
    heimdall={
        "unique": True,
        "unique_timeout": 600,
        "unique_raises": True,
        "key": lambda args, kwargs: f"account-{args[0]}",
    },
)
def sync_account(account, reason):
    work(f"sync {account}")


@app.task(
    base=HeimdallTask,
    heimdall={"unique": True, "unique_timeout": 600, "unique_wait_for_expiry": True},
)
def send_digest(address):
    work(f"digest {address}")


@app.task(base=HeimdallTask, heimdall={"rate_limit": RateLimit((2, 600)), "key": "pages"})
def fetch_page(page):
    work(f"page {page}")


@app.task(
    base=HeimdallTask,
    heimdall={
        "rate_limit": RateLimit(lambda args: (1, 600) if args[0] == "small" else (100, 1)),
        "key": lambda args, kwargs: f"customer-{args[0]}",
    },
)
def sync_customer(customer, number):
    work(f"customer {customer}")


@app.task(base=HeimdallTask, heimdall={"unique": True, "rate_limit": RateLimit((1, 5))})
def refresh(cache):
    work(f"refresh {cache}")


@app.task(bind=True, base=HeimdallTask)
def clean_up(self, folder):
    if self.only_after("announce", 600):
        work("announce")
    work(f"clean {folder}")


@app.task(bind=True, base=HeimdallTask, heimdall={"unique": True})
def fetch_feed(self, url):
    work(f"feed {url}")
    if self.request.retries == 0:
        raise self.retry(countdown=0.5)
    return url
