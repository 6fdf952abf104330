"""What goes wrong between a client and its server, as the store's own errors."""

from __future__ import annotations

import re

from redis.exceptions import RedisClusterException, RedisError

from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store.protocol import NotARecord

# Refused, reset, timed out, no connection left in the pool, LOADING, READONLY, OOM, NOPERM, a cluster without
# an owner for the slot. The cluster's is no RedisError, and redis-py does not wrap every OSError.
FAILURES = (RedisError, RedisClusterException, OSError)

_FOREIGN = re.compile("celery-dedupe: <(.*)> is not a record", re.DOTALL)
# redis-py 6 and 7 put the settings of a Sentinel that they cannot reach into the error.
_SECRETS = re.compile(r"\b(username|password|credential_provider)=[^,)]*")


class Answering:
    """``with ANSWERING:`` turns every failure of the client into ``StoreUnavailable``."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FAILURES):
            message = _SECRETS.sub(r"\1=***", str(error))
            if found := _FOREIGN.search(message):
                raise NotARecord(found[1]) from error
            raise StoreUnavailable(
                f"the claim store cannot be used: {type(error).__name__}: {message}"
            ) from error


ANSWERING = Answering()
