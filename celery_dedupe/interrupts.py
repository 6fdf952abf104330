"""Stops a run whose lease is lost (``on_lease_lost="terminate"``), where its pool can be stopped."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable

from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import soft_timeout_sighandler


def of_this_thread() -> Callable[[], None]:
    """What raises ``SoftTimeLimitExceeded`` in the calling thread, when called from another.

    A prefork child is sent the signal that Celery's soft time limit uses, which also wakes it from a blocking
    call. Elsewhere the error is raised when the thread next runs Python code: a thread in a C call notices
    late, a gevent or eventlet greenlet not at all, since it shares its thread with all others.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGUSR1) is soft_timeout_sighandler:
        pid = os.getpid()
        return lambda: os.kill(pid, signal.SIGUSR1)
    ident = ctypes.c_ulong(threading.get_ident())

    def raise_there() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SoftTimeLimitExceeded))

    return raise_there
