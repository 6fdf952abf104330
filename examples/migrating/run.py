"""Plays one example: ``python run.py celery-once``. Exits with 1 if anything did not come true.

It runs what is in the folder ``after``, and needs ``celery-dedupe[demo]``: it starts a Valkey of its own.
``python run.py celery-once before`` plays the same with the old library, where that is installed.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import better
from stage import open_stage

FOLDER = Path(__file__).parent
PATIENCE = {"before": 10.0, "after": 60.0}  # seconds; what is claimed of the new side is worth waiting for


def main(library: str, side: str = "after") -> int:
    code = FOLDER / library / side
    sys.path[:0] = [str(code), str(FOLDER / library)]
    with open_stage(code, PATIENCE[side]) as stage:
        import story
        import tasks

        print(f"{library}, {side}\n")
        story.in_the_queue(stage, tasks)
        better.in_the_queue(stage, tasks)
        stage.start_worker()
        story.at_work(stage, tasks)
        better.at_work(stage, tasks)
        gc.collect()  # a result that is collected later would look for the server
    print(
        f"\n{stage.failed} of the above did not happen as it should have."
        if stage.failed
        else "\nAll as it should be."
    )
    return 1 if stage.failed else 0


def stop(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # and so would those that Celery holds on to
