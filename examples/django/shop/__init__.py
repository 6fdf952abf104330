"""The project. Importing the app here is what Celery's guide for Django asks for."""

from __future__ import annotations

from shop.celery import app as celery_app

__all__ = ["celery_app"]
