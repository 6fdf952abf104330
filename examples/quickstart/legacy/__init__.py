"""A small code base that was there first. It knows the extension by one line in ``app.py``, and by rules."""
