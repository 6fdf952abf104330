"""What a message carries of its claim survives the wire, and what somebody else wrote there does no harm."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dedupe.core.ticket import HEADER, VERSION, Ticket, from_headers

PLAIN_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
TICKETS = st.builds(
    Ticket,
    keys=st.lists(st.text(), max_size=4).map(tuple),
    nonce=st.text(max_size=8),
    override=st.none() | st.just(False) | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    successor_of=st.text(max_size=8),
    generation=st.integers(0, 2**31),
    workflow=st.booleans(),
    waits=st.integers(0, 1000),
    waited=st.floats(0, 1e9),
    serializer=st.text(max_size=8),
    observed=st.booleans(),
)


def over_the_wire(ticket: Ticket) -> Ticket | None:
    return from_headers(json.loads(json.dumps({HEADER: ticket.to_header()})))


@given(TICKETS)
def test_a_ticket_comes_back_from_json_as_it_went(ticket):
    # A wait of no time at all is none: its seconds are not written.
    expected = ticket if ticket.waits else Ticket(**{**_fields(ticket), "waited": 0.0})
    assert over_the_wire(ticket) == expected


def test_what_has_its_default_is_left_out():
    assert Ticket(("k",), "n").to_header() == {"v": VERSION, "k": ["k"], "n": "n"}
    assert set(Ticket(("k",), "n", False, "id", 1, True, 2, 3.0, "yaml", True).to_header()) == set(
        "vknosgfwzd"
    )


def test_a_call_that_wants_no_lock_says_so_to_the_worker():
    assert over_the_wire(Ticket(override=False)).override is False


@pytest.mark.parametrize("headers", [None, {}, {"x": 1}, {HEADER: None}])
def test_a_message_of_a_program_without_the_extension_has_no_ticket(headers):
    """Case 34."""
    assert from_headers(headers) is None


@pytest.mark.parametrize("version", [VERSION + 1, 0, None, "1", [1]])
def test_a_header_of_another_version_is_left_alone(version):
    """Case 50: during a rolling deploy the two versions meet."""
    assert from_headers({HEADER: {**Ticket(("k",), "n").to_header(), "v": version}}) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": "abc"},
        {"k": [1]},
        {"k": None},
        {"n": 1},
        {"s": {}},
        {"g": "1"},
        {"g": None},
        {"g": -1},
        {"w": 3},
        {"w": [1]},
        {"w": ["1", 2]},
        {"w": [1, None]},
        {"w": [1, float("nan")]},
        {"z": 1},
    ],
)
def test_a_header_that_somebody_else_wrote_is_no_ticket(wrong):
    assert from_headers({HEADER: {**Ticket(("k",), "n").to_header(), **wrong}}) is None


@given(PLAIN_JSON, st.dictionaries(st.sampled_from("vknosgfw"), PLAIN_JSON))
def test_no_header_whatever_raises(header, parts):
    from_headers({HEADER: header})
    from_headers({HEADER: {"v": VERSION, **parts}})


def _fields(ticket: Ticket) -> dict[str, object]:
    return {field.name: getattr(ticket, field.name) for field in fields(ticket)}
