"""The commands that a server received while a block ran, told by MONITOR."""

from __future__ import annotations

import re
import socket
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import redis

from tests.harness.servers import ValkeyServer

# What a client says once a connection, before it has anything to say.
HANDSHAKE = frozenset({"AUTH", "CLIENT", "HELLO", "SELECT"})

_LINE = re.compile(r"\+(?P<at>[\d.]+) \[(?P<db>\d+) (?P<client>[^\]]+)\] (?P<words>.*)")
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|.)")
_PLAIN = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b"}


@dataclass(frozen=True)
class Command:
    """One command as it arrived.

    Attributes:
        db: number of the database it worked on.
        client: address of its connection, ``"127.0.0.1:PORT"``; ``"lua"`` if a script sent it.
        name: in capitals.
        args: the words after the name, each byte a character.
    """

    db: int
    client: str
    name: str
    args: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys it names: those of a script call; else its first word, if any."""
        if self.name in {"EVAL", "EVALSHA", "FCALL"}:
            return self.args[2 : 2 + int(self.args[1])]
        return self.args[:1]


@dataclass
class Commands:
    """What was received, oldest first, without what scripts did inside and connections' handshakes."""

    received: list[Command] = field(default_factory=list)

    def of(
        self, *, db: int | None = None, key: str = "*", name: str = "*", client: str = "*"
    ) -> list[Command]:
        """Those of a database, of which a key, the name and the client's address match these globs.

        A command without any key, PING for one, is of the key ``*`` only.
        """
        return [
            command
            for command in self.received
            if db in (None, command.db)
            and fnmatchcase(command.name, name)
            and fnmatchcase(command.client, client)
            and (key == "*" or any(fnmatchcase(one, key) for one in command.keys))
        ]

    def names(self, *, db: int | None = None, key: str = "*", client: str = "*") -> list[str]:
        """Their names, in order: ``["EVALSHA"]`` is one round trip; a pipeline shows as many."""
        return [command.name for command in self.of(db=db, key=key, client=client)]

    def by_client(self, *, db: int | None = None) -> Counter[str]:
        """How many each connection sent."""
        return Counter(command.client for command in self.of(db=db))


@contextmanager
def count_commands(server: ValkeyServer) -> Iterator[Commands]:
    """Yields what the server receives in the block; complete once the block has been left."""
    seen = Commands()
    with (
        socket.create_connection((server.host, server.port), timeout=10) as link,
        link.makefile("rwb") as stream,
    ):
        stream.write(b"MONITOR\r\n")
        stream.flush()
        if (answer := stream.readline()) != b"+OK\r\n":
            raise RuntimeError(f"MONITOR was refused: {answer!r}")
        yield seen
        sentinel = uuid.uuid4().hex
        with redis.Redis.from_url(server.url()) as client:
            client.echo(sentinel)
        seen.received.extend(_until(sentinel, stream))


def _until(sentinel: str, stream: Iterator[bytes]) -> Iterator[Command]:
    for line in stream:
        command = _parse(line.decode("latin-1").rstrip("\r\n"))
        if command.name == "ECHO" and command.args == (sentinel,):
            return
        if command.client != "lua" and command.name not in HANDSHAKE:
            yield command
    raise RuntimeError("the server ended before it had told all commands")


def _parse(line: str) -> Command:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"not a line of MONITOR: {line!r}")
    name, *args = (_ESCAPE.sub(_unescape, word) for word in _WORD.findall(match["words"]))
    return Command(int(match["db"]), match["client"], name.upper(), tuple(args))


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) == 3 else _PLAIN.get(code, code)
