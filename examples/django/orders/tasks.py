"""Tasks. A rule in the settings speaks for the first; the second makes its own effect happen once."""

from __future__ import annotations

from celery import shared_task
from django.db import transaction

from celery_dedupe.django import effect_once
from orders.models import Attempt, Charge, Invoice


class DeclinedError(Exception):
    """The bank says no, and may say yes a little later."""


@shared_task
def make_invoice(order_id: str) -> int:
    """Make the invoice of an order."""
    return Invoice.objects.create(order_id=order_id).pk


@shared_task(autoretry_for=(DeclinedError,), retry_kwargs={"max_retries": 3, "countdown": 0})
def charge(order_id: str) -> bool:
    """Charge an order, once, however many copies of this message come. Returns whether this one did it."""
    declined = not Attempt.objects.filter(order_id=order_id).exists()
    Attempt.objects.create(order_id=order_id, declined=declined)
    with transaction.atomic(), effect_once("charge", order_id) as first:
        if first:
            Charge.objects.create(order_id=order_id)
            if declined:
                raise DeclinedError
        return first
