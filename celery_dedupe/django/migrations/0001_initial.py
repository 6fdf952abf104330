from __future__ import annotations

import django.utils.timezone
from django.db import migrations, models

import celery_dedupe.django.models


class Migration(migrations.Migration):
    initial = True

    operations = [
        migrations.CreateModel(
            name="Effect",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", celery_dedupe.django.models.ExactCharField(max_length=100)),
                ("object_id", celery_dedupe.django.models.ExactCharField(max_length=255)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now, editable=False)),
            ],
            options={
                "db_table": "celery_dedupe_effects",
                "constraints": [
                    models.UniqueConstraint(fields=("kind", "object_id"), name="celery_dedupe_effect_once")
                ],
            },
        ),
    ]
