"""The app of a worker that is measured: what ``celery -A tests.benchmarks.worker_app`` loads."""

from __future__ import annotations

import json
import os

from tests.benchmarks.contenders import make_app

app = make_app(**json.loads(os.environ["BENCH_APP"]))
