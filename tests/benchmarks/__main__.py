"""Runs rows, prints what they find, and writes docs/benchmarks.md of the last run of each.

A row that a busy machine has spoilt is run again by itself; the rest of the page stays.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.benchmarks.figures import Setting
from tests.benchmarks.report import PAGE, Section, keep, kept, page, table
from tests.benchmarks.rows import ROWS
from tests.harness.reaper import Reaper


def main() -> int:
    parser = argparse.ArgumentParser("make bench", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"some of: {' '.join(ROWS)}; else all")
    parser.add_argument("--rounds", type=int, default=9, help="of each comparison; 9 unless given")
    parser.add_argument("--size", type=float, default=1.0, help="a fraction of the numbers of keys and tasks")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    reaper = Reaper()
    try:
        for name in options.rows or ROWS:
            load, started = os.getloadavg()[0], time.monotonic()
            figures = ROWS[name](Setting(options.rounds, options.size, reaper))
            print(f"\n{name} ({time.monotonic() - started:.0f} s)\n\n{table(figures)}", flush=True)
            if options.size == 1.0 and options.rounds >= 7:
                keep(name, Section(figures, options.rounds, load))
    finally:
        reaper.close()
    PAGE.write_text(page(kept()), encoding="utf-8")
    print(f"\nwritten: {PAGE}")
    return 0


sys.exit(main())
