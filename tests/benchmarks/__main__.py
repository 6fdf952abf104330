"""Runs the rows, prints what they find, and writes docs/benchmarks.md when all of them were run."""

from __future__ import annotations

import argparse
import sys
import time

from tests.benchmarks.figures import Figure, Setting
from tests.benchmarks.report import PAGE, page, table
from tests.benchmarks.rows import ROWS
from tests.harness.reaper import Reaper


def main() -> int:
    parser = argparse.ArgumentParser("make bench", description=__doc__)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help=f"some of: {' '.join(ROWS)}; all of them if none"
    )
    parser.add_argument("--rounds", type=int, default=9, help="of each comparison; 9 unless given")
    parser.add_argument("--size", type=float, default=1.0, help="a fraction of the numbers of keys and tasks")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    found: dict[str, list[Figure]] = {}
    reaper = Reaper()
    try:
        with Setting(0, 0, reaper).server() as server:
            version = str(server.client().info("server").get("valkey_version"))
        for name in options.rows or ROWS:
            started = time.monotonic()
            found[name] = ROWS[name](Setting(options.rounds, options.size, reaper))
            print(f"\n{name} ({time.monotonic() - started:.0f} s)\n\n{table(found[name])}", flush=True)
    finally:
        reaper.close()
    if not options.rows and options.size == 1.0:
        PAGE.write_text(page(found, options.rounds, version), encoding="utf-8")
        print(f"\nwritten to {PAGE}")
    missed = [figure.what for figures in found.values() for figure in figures if figure.met is False]
    print(f"\n{len(missed)} missed{': ' if missed else ''}{'; '.join(missed)}")
    return 0


sys.exit(main())
