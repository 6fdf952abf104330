"""Orders, and what has been done about them."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """Something that somebody wants to buy."""

    number = models.CharField(max_length=20, primary_key=True)


class Invoice(models.Model):
    """A file that takes long to make."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)


class Attempt(models.Model):
    """A run of the task that charges. The first one of an order is declined by the bank."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)
    declined = models.BooleanField()


class Charge(models.Model):
    """Money taken. Nothing in the table itself keeps a second one of an order away."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)
