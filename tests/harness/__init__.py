"""What the tests stand on: servers, workers, a ledger of what ran, and the commands a server received.

Nothing here knows celery_dedupe; only the apps in ``tests/apps`` do.
"""
