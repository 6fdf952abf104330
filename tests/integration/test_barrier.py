"""Many publishers publish the same call at one moment: exactly one message (Case 17)."""

from __future__ import annotations

import json

import pytest

from tests.harness.servers import BACKEND, BROKER
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROUNDS = 100
PROCESSES = 8
THREADS = 50
RULES = {
    "jobs.quick": "until_started",
    "jobs.slow": "queue_and_run",
    "jobs.held": "until_finished",
    "jobs.fails": {"lock": "until_expired", "period": "10m"},
    "jobs.ignores": "once",
}

# The threads of one program, and the program with all others, stand at the line together before each round.
PUBLISHER = """
    import json, sys, threading
    import redis
    from celery_dedupe import duplicate_of

    crew, names = int(sys.argv[1]), sys.argv[2].split()
    client = redis.Redis.from_url(app.conf.result_backend)
    line = threading.Barrier(crew)

    def publish():
        for round in range(int(sys.argv[3])):
            if line.wait() == 0:
                client.rpush("here", crew)
                client.blpop([f"go {round}"], timeout=60)
            line.wait()
            result = app.send_task(names[round % len(names)], [f"round {round}"])
            client.rpush(f"got {round}", json.dumps([result.id, duplicate_of(result) is None]))

    threads = [threading.Thread(target=publish) for _ in range(crew)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.timeout(240)
def test_of_50_threads_and_8_processes_one_publishes(make_app, valkey, workers):
    app = make_app(RULES)
    crews = [THREADS, *[1] * PROCESSES]
    programs = [workers.python(app, PUBLISHER, str(crew), " ".join(RULES), str(ROUNDS)) for crew in crews]

    for number in range(ROUNDS):
        got = _play(number, valkey.client(BACKEND), crews, programs)
        assert len({task_id for task_id, _ in got}) == 1, "all have the result of the same task"
        assert sum(published for _, published in got) == 1
        assert valkey.client(BROKER).llen(app.queue) == number + 1

    assert [program.wait() for program in programs] == [0] * len(crews)


def _play(number, client, crews, programs):
    """What each publisher of a round got: the id of its result, and whether it was published."""
    wait_until(lambda: client.llen("here") == len(crews) or _ended_early(programs), 60)
    client.delete("here")
    client.rpush(f"go {number}", *["go"] * len(crews))
    wait_until(lambda: client.llen(f"got {number}") == sum(crews) or _ended_early(programs), 60)
    return [json.loads(one) for one in client.lrange(f"got {number}", 0, -1)]


def _ended_early(programs):
    for program in programs:
        if program.exit_code:
            raise AssertionError(program.log)


ASKER = """
    import json, sys
    import redis
    from celery_dedupe import only_after

    client = redis.Redis.from_url(app.conf.result_backend)
    answers = []
    for round in range(int(sys.argv[1])):
        client.rpush("here", 1)
        client.blpop([f"go {round}"], timeout=60)
        answers.append(only_after(f"round {round}", "1h"))
    print(json.dumps(answers))
"""


def test_of_two_processes_that_ask_at_once_one_is_told_that_a_period_has_passed(make_app, workers, valkey):
    app = make_app()
    client = valkey.client(BACKEND)
    askers = [workers.python(app, ASKER, str(ROUNDS)) for _ in range(2)]
    for number in range(ROUNDS):
        wait_until(lambda n=number: client.llen("here") >= 2 * (n + 1) or _ended_early(askers), 60)
        client.rpush(f"go {number}", *("go" for _ in askers))
    answers = zip(*(json.loads(asker.output) for asker in askers), strict=True)
    assert [sum(pair) for pair in answers] == [1] * ROUNDS
