"""Settings. The two apps of celery-dedupe and its rules are all that was added."""

from __future__ import annotations

import os

SECRET_KEY = "only an example"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "celery_dedupe",  # attaches itself to the Celery app, and checks these settings
    "celery_dedupe.django",  # the table for effect_once
    "orders",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", "shop.sqlite"),
        "OPTIONS": {"timeout": 20},
    }
}

CELERY_BROKER_URL = CELERY_RESULT_BACKEND = os.environ.get("SHOP_REDIS", "redis://localhost:6379/0")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_DEDUPE_MODE = os.environ.get("SHOP_DEDUPE_MODE", "enforce")
CELERY_DEDUPE_RULES = {
    "orders.tasks.make_invoice": {"lock": "until_finished", "key": ["order_id"]},
}
