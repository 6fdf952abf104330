"""The Django app that brings the table of effects."""

from __future__ import annotations

from django.apps import AppConfig


class EffectsConfig(AppConfig):
    """Its label is ``celery_dedupe_effects``, for ``migrate`` and database routers."""

    name = "celery_dedupe.django"
    label = "celery_dedupe_effects"
    verbose_name = "Celery dedupe: effects"
    default_auto_field = "django.db.models.BigAutoField"
