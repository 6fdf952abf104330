"""``INSTALLED_APPS = ["celery_dedupe.django"]``: a table of effects and ``effect_once``, by Django's ORM."""

from __future__ import annotations

from celery_dedupe.django.effects import effect_once

__all__ = ["effect_once"]
