"""A scene as text: who called what, what became of it, and the runs as bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from stage import Call, Run

WIDTH = 48


@dataclass(frozen=True)
class Claim:
    """What a scene shows, whether it did, and what there was instead."""

    text: str
    holds: bool
    found: str


@dataclass(frozen=True)
class Scene:
    """What happened: the calls of one task, its runs, and what else is to be told at a time."""

    title: str
    task: str
    calls: Sequence[Call]
    runs: Sequence[Run]
    claims: Sequence[Claim]
    notes: Sequence[tuple[float, str]] = ()

    @property
    def begins(self) -> float:
        return min([call.at for call in self.calls] + [at for at, _ in self.notes])

    @property
    def ends(self) -> float:
        times = [call.at for call in self.calls] + [at for at, _ in self.notes]
        return max(times + [run.ended or run.started for run in self.runs])


def short(task_id: str) -> str:
    """As much of a task id as tells it from the few others."""
    return task_id[:6]


def events(scene: Scene) -> Iterator[str]:
    """One line each: a call that was sent, calls that were dropped, a run's start, its end, a note."""
    told = [(at, "", text) for at, text in scene.notes]
    told += [(run.started, "worker", f"starts {short(run.task_id)}") for run in scene.runs]
    told += [(run.ended, "worker", f"ends   {short(run.task_id)}") for run in scene.runs if run.ended]
    # Of calls in a row by one person that are duplicates of one task, one line tells.
    alike = attrgetter("who", "duplicate_of", "state")
    for (who, of, state), group in groupby(scene.calls, alike):
        calls = list(group)
        if of is None:
            told += [(call.at, who, f"calls: sent as {short(call.task_id)}") for call in calls]
        else:
            times = f"calls {len(calls)} times: each" if len(calls) > 1 else "calls:"
            told.append((calls[0].at, who, f"{times} a duplicate of {short(of)}, which is {state}"))
    # A call takes a moment: of two at one time, the one that was sent came first.
    for at, who, text in sorted(told, key=lambda event: (round(event[0], 2), "duplicate" in event[2])):
        yield f"  {at - scene.begins:5.2f} s  {who:<6}  {text}".rstrip()


def bars(scene: Scene) -> Iterator[str]:
    """A picture of it: sent calls as ``o``, dropped ones as ``x``, each run as a bar."""
    span = max(scene.ends - scene.begins, 0.1)

    def column(at: float) -> int:
        return min(int((at - scene.begins) / span * WIDTH), WIDTH - 1)

    def marks(calls: Sequence[Call], mark: str) -> str:
        columns = {column(call.at) for call in calls}
        return "".join(mark if index in columns else " " for index in range(WIDTH))

    yield f"  {'':8} |0 s{f'{span:.1f} s|':>{WIDTH - 3}}"
    yield f"  {'sent':8} |{marks([call for call in scene.calls if not call.duplicate_of], 'o')}|"
    yield f"  {'dropped':8} |{marks([call for call in scene.calls if call.duplicate_of], 'x')}|"
    for run in scene.runs:
        first, last = column(run.started), column(run.ended or scene.ends)
        bar = "=" * (last - first + 1) if run.ended else "=X killed"
        yield f"  {short(run.task_id):8} |{' ' * first + bar:<{WIDTH}}|"
