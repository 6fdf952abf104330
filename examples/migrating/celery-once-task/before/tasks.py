"""The app and its tasks, with celery-once-task."""

from __future__ import annotations

from celery import Celery
from celery_once_task import OnceTask, OnceTaskUnlockBootStep, setup_once_task_signals
from journal import work

app = Celery("shop")
app.config_from_object("celeryconfig")
app.steps["worker"].add(OnceTaskUnlockBootStep)
setup_once_task_signals()


@app.task(base=OnceTask, acks_late=True)
def make_report(customer, colour="blue"):
    work(f"report {customer}")
    return f"{customer}-{colour}.pdf"


@app.task(base=OnceTask)
def sync_account(account, reason):
    work(f"sync {account}")


@app.task(base=OnceTask, running_lock=False)
def update_index(page):
    work(f"index {page}")


@app.task(base=OnceTask, queue_lock=False)
def clean_up(folder):
    work(f"clean {folder}")


@app.task(bind=True, base=OnceTask, acks_late=True)
def fetch_feed(self, url):
    work(f"feed {url}")
    if self.request.retries == 0:
        raise self.retry(countdown=0.5)
    return url
