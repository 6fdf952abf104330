"""One process that tells Prometheus of the whole cluster: ``python exporter.py proj 9808``.

The first argument names the app as ``celery -A`` has it, the second the port. It needs the app and the claim
store, no broker and no worker.
"""

from __future__ import annotations

import sys
import threading

from celery.app.utils import find_app
from prometheus_client import CollectorRegistry, start_http_server

from celery_dedupe.prometheus import DedupeCollector

app = find_app(sys.argv[1])
registry = CollectorRegistry()
registry.register(DedupeCollector(app.dedupe))
start_http_server(int(sys.argv[2]), registry=registry)
threading.Event().wait()
