"""``make demo``: plays the story and prints what happened. Exits with 1 if any of it did not.

``LEGACY_DEDUPE_MODE=off make demo`` shows the same code base without the extension.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

from legacy.celeryconfig import dedupe_rules
from stage import open_stage
from story import SCENES
from timeline import Scene, bars, events

INTRODUCTION = "A code base that calls the same work twice, a real worker, one line and four rules."
COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ
BOLD, RED, GREEN, DIM = "1", "31", "32", "2"


def paint(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if COLOUR else text


def written(scene: Scene) -> Iterator[str]:
    """The scene as the person reads it."""
    for line in events(scene):
        yield paint(line, DIM) if "a duplicate of" in line else line
    yield ""
    yield from bars(scene)
    yield ""
    for claim in scene.claims:
        if claim.holds:
            yield f"  {paint('ok', GREEN)}      {claim.text}"
        else:
            yield f"  {paint('FAILED', RED)}  {claim.text}: {claim.found}"


def main() -> int:
    started = time.monotonic()
    print(INTRODUCTION, flush=True)
    scenes = []
    with open_stage() as stage:
        for number, play in enumerate(SCENES, start=1):
            scene = play(stage)
            scenes.append(scene)
            rule = next(name for name in dedupe_rules if name.partition("*")[0] in scene.task)
            print(f"\n{paint(f'{number}. {scene.title}', BOLD)}")
            print(f"   task  {scene.task}\n   rule  {rule!r}: {dedupe_rules[rule]!r}\n")
            print("\n".join(written(scene)), flush=True)
    calls = sum(len(scene.calls) for scene in scenes)
    runs = sum(len(scene.runs) for scene in scenes)
    failed = sum(not claim.holds for scene in scenes for claim in scene.claims)
    print(f"\n{calls} calls, {runs} runs: {calls - runs} runs saved, in {time.monotonic() - started:.0f} s.")
    if failed:
        print(paint(f"{failed} of the above did not happen as it should have.", RED))
    return 1 if failed else 0


def stop(number: int, _: object) -> NoReturn:
    """End everything, once, however often Ctrl-C is pressed."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, stop)
    sys.exit(main())
