from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

ID = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")
ORDER = models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="orders.order")


class Migration(migrations.Migration):
    initial = True

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[("number", models.CharField(max_length=20, primary_key=True, serialize=False))],
        ),
        migrations.CreateModel(name="Invoice", fields=[("id", ID.clone()), ("order", ORDER.clone())]),
        migrations.CreateModel(name="Charge", fields=[("id", ID.clone()), ("order", ORDER.clone())]),
        migrations.CreateModel(
            name="Attempt",
            fields=[("id", ID.clone()), ("declined", models.BooleanField()), ("order", ORDER.clone())],
        ),
    ]
