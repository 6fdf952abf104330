"""Keys over nested arguments, against what Celery's JSON delivers and against Python's own binding."""

from __future__ import annotations

import inspect
from typing import Any

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from kombu.utils.json import dumps, loads

from celery_dedupe.core.arguments import bind
from celery_dedupe.core.call import Call
from celery_dedupe.core.canonical import canonical
from celery_dedupe.core.keys import make_key
from celery_dedupe.core.policy import Policy

texts = st.text(max_size=6) | st.text(st.sampled_from('\ud83d\ude00\uffff"\\:,![]{}a\x7f'), max_size=4)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | texts
    | st.binary(max_size=6)
    | st.uuids()
    | st.dates()
    | st.times()
    | st.datetimes(timezones=st.timezones() | st.none())
)
leaves = scalars | st.decimals()
keys = texts | st.integers(-20, 20) | st.booleans() | st.none() | st.floats()


def envelopes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings that look like what kombu's encoder writes."""
    markers = st.sampled_from(["uuid", "bytes", "base64", "datetime", "date", "time", "decimal", "other"])
    values = inner | st.sampled_from(["1", "YWI=", "2020-01-02", "2020-01-02T03:04:05+00:00", "03:04"])
    return st.fixed_dictionaries({"__type__": markers, "__value__": values})


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=4)
    return lists | lists.map(tuple) | st.dictionaries(keys, inner, max_size=4) | envelopes(inner)


arguments = st.recursive(leaves, containers, max_leaves=8)
few = st.recursive(
    st.sampled_from([0, 1, True, False, 1.0, "1", "", None, b"1", "!set[1]"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.sampled_from([1, "1", True, "true", None, 10, 2, "a", "A"]), inner, max_size=3)
    ),
    max_leaves=4,
)


DEFAULT = Policy()


def preimage(args: Any, kwargs: Any, policy: Policy = DEFAULT) -> str:
    return make_key(Call("proj.task", "id", args, kwargs, None), policy, prefix="dedupe").preimage


def delivered(value: Any) -> Any:
    """What the worker gets; skips what kombu itself cannot read back."""
    text = dumps(value)
    try:
        return loads(text)
    except Exception:  # noqa: BLE001 - whatever a decoder raises
        assume(False)


@given(st.lists(arguments, max_size=3), st.dictionaries(texts, arguments, max_size=3))
@example([{2: "a", 10: "b"}, {"10": 1, "2": 2}], {})
@example([{1: "a", "1": "b"}], {})
@example(["\ud83d\ude00"], {"\ud83d\ude00": 1, "\uffff": 2})
@example([{"__type__": "base64", "__value__": "YWI="}], {})
@example(["x" * 2000, "é" * 2000], {})
def test_publisher_and_worker_make_one_key(args: list[Any], kwargs: dict[str, Any]) -> None:
    """Case 46: the key of the arguments is the key of what Celery's JSON delivers."""
    there = delivered([args, kwargs])
    assert preimage(tuple(args), kwargs) == preimage(*there)


@given(few, few)
@example({1: 0, "1": 1}, {"1": 1})
@example({True: 0}, {"true": 0})
@example({"a": 0}, {"A": 0})
@example({"null": 0}, {None: 0})
@example({"a": 1}, [["a", 1]])
def test_keys_are_equal_exactly_where_deliveries_are(one: Any, other: Any) -> None:
    same = dumps(loads(dumps(one)), sort_keys=True) == dumps(loads(dumps(other)), sort_keys=True)
    assert (preimage([one], {}) == preimage([other], {})) == same


@given(arguments, arguments)
def test_different_forms_make_different_preimages(one: Any, other: Any) -> None:
    same = canonical(one) == canonical(other)
    for policy in (DEFAULT, Policy(key=["a"]), Policy(key="{a}"), Policy(key=lambda a: a)):
        assert (preimage([], {"a": one}, policy) == preimage([], {"a": other}, policy)) == same


pairs = st.tuples(st.text('a:"[],', max_size=4), st.text('a:"[],', max_size=4))


@given(pairs, pairs, st.sampled_from(["{a}:{b}", "{a}{b}", "a{a}a{b}", '"],["{a}{b}']))
@example(("a:", "a"), ("a", ":a"), "{a}:{b}")
def test_nobody_forges_a_templates_key(one: tuple[str, str], other: tuple[str, str], template: str) -> None:
    made = [preimage([], dict(zip("ab", pair, strict=True)), Policy(key=template)) for pair in (one, other)]
    assert (made[0] == made[1]) == (one == other)


hashable = st.recursive(scalars, lambda inner: st.frozensets(inner, max_size=4), max_leaves=6)


@given(st.sets(hashable, max_size=6))
def test_the_order_of_a_set_does_not_matter(items: set[Any]) -> None:
    again = frozenset(sorted(items, key=canonical, reverse=True))
    assert canonical(items) == canonical(again)


@st.composite
def signatures(draw: st.DrawFn) -> inspect.Signature:
    kinds = sorted(draw(st.lists(st.sampled_from(list(inspect._ParameterKind)), max_size=5)))
    parameters: list[inspect.Parameter] = []
    optional = False
    for index, kind in enumerate(kinds):
        group = kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if group and any(kind is earlier.kind for earlier in parameters):
            continue
        optional = draw(st.booleans()) or (optional and kind < inspect.Parameter.KEYWORD_ONLY)
        default = -index if optional and not group else inspect.Parameter.empty
        parameters.append(inspect.Parameter("abcde"[index], kind, default=default))
    return inspect.Signature(parameters)


GROUPS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
calls = st.tuples(
    st.lists(st.integers(1, 2), max_size=4).map(tuple),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 2), max_size=4),
)


def as_python_binds(signature: inspect.Signature, call: Any) -> dict[str, Any] | None:
    # Not ``Signature.bind``: before Python 3.13 it refuses some calls that Python itself takes.
    function = eval(f"lambda {str(signature)[1:-1]}: locals()")
    try:
        bound: dict[str, Any] = function(*call[0], **call[1])
    except TypeError:
        return None
    return bound


@given(signatures(), calls)
def test_binding_agrees_with_pythons(signature: inspect.Signature, call: Any) -> None:
    found = bind(Call("t", "i", *call, signature), None)
    named = as_python_binds(signature, call)
    if named is None:
        assert found.shape == "unfit"
        return
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    groups = {name: named.pop(name) for name, kind in kinds.items() if kind in GROUPS}
    rest = next((group for group in groups.values() if isinstance(group, tuple)), ())
    options = next((group for group in groups.values() if isinstance(group, dict)), {})
    assert found.groups == groups
    assert set(found.defaulted) == {name for name, value in named.items() if value <= 0}
    if options.keys() & named:
        assert (found.shape, found.named) == ("shadowed", named)
        assert tuple(found.unnamed) == (*rest, options)
    else:
        assert (found.shape, found.named) == ("all", {**named, **options})
        assert tuple(found.unnamed) == rest


# Few calls fit a random signature, and some runs meet too few of them early.
@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(signatures(), calls, calls)
def test_calls_that_bind_differently_have_different_keys(
    signature: inspect.Signature, one: Any, other: Any
) -> None:
    """A call that does not fit the signature never has the key of one that does."""
    bound = [as_python_binds(signature, call) for call in (one, other)]
    assume(bound[0] is not None)
    made = [make_key(Call("t", "i", *call, signature), DEFAULT, prefix="p").text for call in (one, other)]
    assert (made[0] == made[1]) == (bound[0] == bound[1])
