"""The two places where Celery lets an extension say no (measured on Celery 5.3 to 5.7).

``Signal.send`` swallows every ``Exception`` of a receiver, so neither ``before_task_publish`` nor
``task_prerun`` can refuse by raising one. Two seams do: ``app.send_task``, shadowed on the app instance
(``publish``), and ``before_start`` on each task's class (``run``).
"""
