"""What it takes to find a task's rule among 10,000 globs."""

from __future__ import annotations

from itertools import count

from celery import Celery
from celery.app.routes import MapRoute

from celery_dedupe import Dedupe
from tests.benchmarks.figures import Figure, Setting, ratio
from tests.benchmarks.lanes import Work, in_turn, lanes


def row(setting: Setting) -> list[Figure]:
    globs = setting.of(10_000)
    makers = {
        "first": (make_first, globs),
        "routes": (make_routes, globs),
        "later": (make_later, globs),
        "dictionary": (make_dictionary, globs),
    }
    with lanes(makers) as contenders:
        found = in_turn(contenders, setting.rounds)
    return [
        ratio(
            f"a name among {globs:,} globs for the first time, against `task_routes`",
            found["first"], found["routes"], at_most=1.0,
        ),
        ratio(
            "the same name later, against a dictionary look-up",
            found["later"], found["dictionary"], at_most=5.0,
        ),
    ]  # fmt: skip


def _globs(number: int) -> list[str]:
    return [f"app{one}.tasks.*" for one in range(number)]


def _dedupe(globs: int) -> Dedupe:
    app = Celery(broker="memory://", set_as_current=False)
    return Dedupe(app, url="memory://", rules=dict.fromkeys(_globs(globs), "until_finished")).init_app()


def make_first(globs: int) -> Work:
    """Names that only the last glob matches, each a new one."""
    names = (f"app{globs - 1}.tasks.n{one}" for one in count())
    return "policies(next(names))", {"policies": _dedupe(globs).policies, "names": names}


def make_routes(globs: int) -> Work:
    route = MapRoute({name: {"queue": "q"} for name in _globs(globs)})
    names = (f"app{globs - 1}.tasks.n{one}" for one in count())
    return "route(next(names))", {"route": route, "names": names}


def make_later(globs: int) -> Work:
    dedupe, name = _dedupe(globs), f"app{globs - 1}.tasks.n"
    dedupe.app.task(name=name)(_nothing)
    return "policies(name)", {"policies": dedupe.policies, "name": name}


def _nothing() -> None: ...


def make_dictionary(globs: int) -> Work:
    table = dict.fromkeys(_globs(globs), 1)
    return "table[name]", {"table": table, "name": f"app{globs - 1}.tasks.*"}
