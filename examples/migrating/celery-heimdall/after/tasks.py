"""The app and its tasks, as they were but for only_after; what may run at once is said in celeryconfig.py."""

from __future__ import annotations

from celery import Celery
from journal import work

from celery_dedupe import Dedupe, only_after

app = Celery("shop")
app.config_from_object("celeryconfig")
Dedupe(app).init_app()


@app.task
def make_report(customer, colour="blue"):
    work(f"report {customer}")
    return f"{customer}-{colour}.pdf"


@app.task
def sync_account(account, reason):
    work(f"sync {account}")


@app.task
def send_digest(address):
    work(f"digest {address}")


@app.task
def fetch_page(page):
    work(f"page {page}")


@app.task
def sync_customer(customer, number):
    work(f"customer {customer}")


@app.task
def refresh(cache):
    work(f"refresh {cache}")


@app.task
def clean_up(folder):
    if only_after("announce", 600):
        work("announce")
    work(f"clean {folder}")


@app.task(bind=True)
def fetch_feed(self, url):
    work(f"feed {url}")
    if self.request.retries == 0:
        raise self.retry(countdown=0.5)
    return url
