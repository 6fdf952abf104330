"""``dedupe stats``."""

from __future__ import annotations

import json

import pytest

from celery_dedupe.core.counts import COUNTED, HOUR

NAME = "dedupe:stats"
MADE = {
    ("reports.make", "published"): 120,
    ("reports.make", "dropped"): 1080,
    ("reports.make", "started"): 121,
    ("reports.make", "lease_lost"): 1,
    ("sync", "published"): 30,
    ("sync", "started"): 30,
    ("sync", "waited"): 4,
    ("sync", "skipped"): 10,
    ("sync", "unprotected"): 2,
}
TEXT = """\
TASK          PUBLISHED  DROPPED  STARTED  SKIPPED  WAITED  LEASES LOST  UNPROTECTED  SAVED
reports.make        120    1,080      121        0       0            1            0   90% #########.
sync                 30        0       30       10       4            0            2   33% ###.......

since 2023-11-13 22:00 UTC
"""
OBSERVED = """\
TASK  PUBLISHED  DROPPED  STARTED  SKIPPED  WAITED  POISONED  LEASES LOST  UNPROTECTED  SAVED
sync         10        0       10        0       0         1            0            0    0% ..........
t             1        0        0        0       0         0            0            0    0% ..........

What locks that only observe would have done:
TASK  WOULD DROP  WOULD SKIP  WOULD WAIT  WOULD SAVE
sync           4           1           0   50% #####.....

since 2023-11-13 22:00 UTC
"""


@pytest.fixture
def a(local_app):
    return local_app({"t": "until_finished"})


def test_a_person_sees_a_line_a_task(dedupe_command, a):
    a.store.count(NAME, MADE)
    result = dedupe_command(a.app, "stats")
    assert (result.exit_code, result.output) == (0, TEXT)


def test_what_is_observed_is_told_beside(dedupe_command, a):
    words = {"published": 10, "started": 10, "would_drop": 4, "would_skip": 1, "poisoned": 1}
    a.store.count(NAME, {("sync", word): number for word, number in words.items()} | {("t", "published"): 1})
    assert dedupe_command(a.app, "stats").output == OBSERVED


def test_a_program_gets_all_of_it(dedupe_command, a):
    a.store.count(NAME, MADE)
    found = json.loads(dedupe_command(a.app, "stats", "--json").output)
    assert found["since"] == "2023-11-13T22:00:00+00:00"
    assert found["until"].startswith("2023-11-14T22:13:20.")
    first, second = found["tasks"]
    assert (first["task"], first["dropped"], first["saved"], first["would_save"]) == (
        "reports.make",
        1080,
        0.9,
        0.0,
    )
    assert set(second) == {"task", "saved", "would_save", *COUNTED}


def test_it_is_of_the_hours_that_were_asked_for(dedupe_command, a):
    for number in (1, 10, 100):
        a.store.count(NAME, {("t", "published"): number})
        a.clock.turn(HOUR / 1000)

    def published(*words: str) -> int:
        (task,) = json.loads(dedupe_command(a.app, "stats", "--json", *words).output)["tasks"]
        return int(task["published"])

    assert published("--since", "1h") == 100
    assert published("--since", "119m") == 110
    assert published("--since", "7d") == published() == 111


def test_nothing_was_counted(dedupe_command, a):
    assert dedupe_command(a.app, "stats").output == "nothing was counted since 2023-11-13 22:00 UTC\n"
    assert json.loads(dedupe_command(a.app, "stats", "--json").output)["tasks"] == []


@pytest.mark.parametrize(
    ("settings", "words", "said"),
    [
        ({"mode": "off"}, [], "dedupe_mode is 'off', so nothing is counted"),
        ({"stats": False}, [], "dedupe_stats is False, so nothing is counted"),
        ({}, ["--since", "yesterday"], "--since 'yesterday' is not a duration: write seconds"),
        ({}, ["--since", "8d"], "--since '8d': counts are kept for 8d; write 7d or less"),
    ],
)
def test_what_cannot_be_told(dedupe_command, local_app, settings, words, said):
    result = dedupe_command(local_app(**settings).app, "stats", *words)
    assert result.exit_code == 2
    assert said in result.output
