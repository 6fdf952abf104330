"""What the rules of the shop do, tested without a broker or a Redis."""

from __future__ import annotations

from shop import charge, digest, export


def test_a_second_click_gets_the_export_that_is_on_its_way(dedupe):
    first = export.delay("acme")
    second = export.delay(customer="acme")

    dedupe.assert_claimed(first)
    assert dedupe.assert_dropped(second).task_id == first.id
    dedupe.assert_claimed(export.delay("another customer"))


def test_there_is_one_digest_an_hour(dedupe):
    digest.delay()

    dedupe.clock.turn("59m")
    dedupe.assert_dropped(digest.delay())
    dedupe.clock.turn("1m")
    dedupe.assert_claimed(digest.delay())


def test_an_order_is_charged_once_a_month_by_eager_calls(dedupe, celery_app, monkeypatch):
    monkeypatch.setitem(celery_app.conf, "task_always_eager", True)

    assert charge.delay(7).get() == "charged 7"
    dedupe.assert_dropped(charge.delay(7))
    dedupe.clock.turn("30d")
    assert charge.delay(7).get() == "charged 7"


def test_a_worker_frees_what_it_held(dedupe, celery_worker):
    assert export.delay("acme").get(timeout=60) == "acme.csv"
    dedupe.no_locks_left()

    charged = charge.delay(7)
    dedupe.assert_dropped(charge.delay(7))  # whether the first one is queued, running or done
    assert charged.get(timeout=60) == "charged 7"
    dedupe.no_locks_left()
