"""Writes docs/versions.md from what the sessions of the matrix have left."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from tests.matrix.dimensions import BROKERS, CELERY, POOLS, PYTHON, REDIS_PY, RESULTS, SERVERS

PAGE = Path(__file__).parents[2] / "docs" / "versions.md"
NOTES = Path(__file__).parent / "notes.md"


def outcome(session: str, results: Path = RESULTS) -> str:
    """What became of a session, in a few words."""
    report, note = results / f"{session}.xml", results / f"{session}.txt"
    if report.exists():
        suites = ET.parse(report).getroot().iter("testsuite")
        counts = [{name: int(suite.get(name, 0)) for name in COUNTED} for suite in suites]
        total = {name: sum(count[name] for count in counts) for name in COUNTED}
        bad = total["failures"] + total["errors"]
        good = total["tests"] - bad - total["skipped"]
        return f"**{bad} failed**, {good} passed" if bad else f"{good} passed"
    return note.read_text(encoding="utf-8").strip() if note.exists() else "not tried"


COUNTED = ("tests", "failures", "errors", "skipped")


def page(results: Path = RESULTS) -> str:
    """All of the matrix as Markdown."""

    def line(*cells: str) -> str:
        return f"| {' | '.join(cells)} |"

    def column(title: str, sessions: dict[str, str]) -> str:
        rows = [line(name, outcome(session, results)) for name, session in sessions.items()]
        return "\n".join([line(title, "tests"), "|---|---|", *rows])

    grid = [line("Celery", *(f"Python {one}" for one in PYTHON)), "|---" * (len(PYTHON) + 1) + "|"]
    for version in CELERY:
        cells = (outcome(f"celery-{python}(celery='{version}')", results) for python in PYTHON)
        grid.append(line(version, *cells))
    return "\n\n".join(
        [
            NOTES.read_text(encoding="utf-8").partition("\n---\n")[0].strip(),
            "## Celery and Python",
            "\n".join(grid),
            "## redis-py",
            column("redis-py", {
                f"{client}, with Celery {celery}": f"redis_py(client='{client}')"
                for client, celery in REDIS_PY.items()
            }),
            "## Servers",
            column("server", {name: f"server(server='{name}')" for name in SERVERS}),
            "## Pools",
            column("pool", {name: f"pool(pool='{name}')" for name in POOLS}),
            "## Brokers",
            column("broker", {name: f"broker(broker='{name}')" for name in BROKERS}),
            NOTES.read_text(encoding="utf-8").partition("\n---\n")[2].strip(),
        ]
    ) + "\n"  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
