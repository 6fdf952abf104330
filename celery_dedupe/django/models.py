"""The table of effects."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils import timezone

from celery_dedupe.core.effect import KIND_LENGTH, OBJECT_ID_LENGTH, TABLE


class ExactCharField(models.CharField):
    """A ``CharField`` that tells "a" from "A" in MySQL, too, whose usual collations do not."""

    def db_parameters(self, connection: Any) -> dict[str, Any]:
        """Return the column's type, with a binary collation where the usual one is not."""
        parameters: dict[str, Any] = super().db_parameters(connection)
        if connection.vendor == "mysql":
            parameters["collation"] = "utf8mb4_bin"
        return parameters


class Effect(models.Model):
    """An effect that has happened. Written by ``effect_once``; delete rows as soon as no copy can come."""

    kind = ExactCharField(max_length=KIND_LENGTH)
    object_id = ExactCharField(max_length=OBJECT_ID_LENGTH)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        db_table = TABLE
        constraints = [
            models.UniqueConstraint(fields=["kind", "object_id"], name="celery_dedupe_effect_once")
        ]

    def __str__(self) -> str:
        return f"{self.kind}: {self.object_id}"
