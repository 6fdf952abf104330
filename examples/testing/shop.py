"""A project with rules, as it is in production: nothing in it is for tests."""

from __future__ import annotations

from celery import Celery

from celery_dedupe import Dedupe

app = Celery("shop", broker="redis://localhost:6379/0", backend="redis://localhost:6379/1")
app.conf.dedupe_url = "redis://localhost:6379/3"
app.conf.dedupe_rules = {
    "shop.export": "until_finished",
    "shop.charge": {"lock": "once", "keep": "30d"},
    "shop.digest": {"lock": "until_expired", "period": "1h"},
}
Dedupe(app).init_app()


@app.task(name="shop.export")
def export(customer: str) -> str:
    return f"{customer}.csv"


@app.task(name="shop.charge")
def charge(order_id: int) -> str:
    return f"charged {order_id}"


@app.task(name="shop.digest")
def digest() -> str:
    return "sent"
