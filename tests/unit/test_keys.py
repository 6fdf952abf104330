"""Keys: which calls are one, which are not, and what an argument without a form is told."""

from __future__ import annotations

import enum
import inspect
import json
import os
import subprocess
import sys
import uuid
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kombu.utils.json import dumps, loads

from celery_dedupe.core.call import Call
from celery_dedupe.core.keys import KEY_VERSION, check_policy, make_key
from celery_dedupe.core.keyspecs import parse_template
from celery_dedupe.core.policy import Policy, overlay, parse_policies
from celery_dedupe.errors import ConfigurationError, UnkeyableArguments

GOLDEN = Path(__file__).with_name("golden_keys.json")


def two(x: Any, y: Any = 0) -> None: ...


def group(first: Any, *rest: Any, flag: bool = False, **options: Any) -> None: ...


def positional_only(a: Any = 1, /, **options: Any) -> None: ...


def signature_of(text: str | None) -> inspect.Signature | None:
    return None if text is None else inspect.signature(eval(f"lambda {text}: None"))


def call(*args: Any, of: Callable[..., Any] | None = two, task: str = "proj.task", **kwargs: Any) -> Call:
    return Call(task, "id", args, kwargs, None if of is None else inspect.signature(of))


def preimage(a_call: Call, **fields: Any) -> str:
    return make_key(a_call, Policy(**fields), prefix="dedupe").preimage


def of_value(value: Any) -> str:
    return preimage(call(value, of=None))


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Other(enum.Enum):
    RED = 1


class Word(str, enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Bits(enum.Flag):
    A = 1
    B = 2


@dataclass
class Point:
    x: Any
    y: Any = 0


@dataclass
class Spot:
    x: Any
    y: Any = 0


class WithJson:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __json__(self) -> Any:
        return self.value


class Opaque:
    def __repr__(self) -> str:
        raise AssertionError("an argument's repr was asked for")

    __str__ = __repr__


class TestGolden:
    @pytest.mark.parametrize("case", loads(GOLDEN.read_text()), ids=lambda case: case["about"])
    def test_keys_do_not_change(self, case: dict[str, Any]) -> None:
        """Case 50: publishers of two versions meet under one key, or KEY_VERSION says that they do not."""
        (policy,) = parse_policies(case["policy"], where="golden_keys.json")
        a_call = Call(case["task"], "id", case["args"], case["kwargs"], signature_of(case["signature"]))
        key = make_key(a_call, policy, prefix="dedupe")
        assert (key.preimage, key.text) == (case["preimage"], case["key"]), (
            "An equal call has another key than in the last version: raise KEY_VERSION in core/keys.py, "
            "tell it in the changelog, and only then renew golden_keys.json."
        )

    def test_the_version_is_part_of_every_key(self) -> None:
        assert preimage(call(1)).startswith(f"[{KEY_VERSION},")


class TestForm:
    def test_is_readable_and_of_fixed_length(self) -> None:
        """Case 50: SHA-256, and a text whose length does not depend on the arguments."""
        small, large = call(1), call("x" * 5_000_000)
        for a_call in (small, large):
            prefix, scope, digest = make_key(a_call, Policy(), prefix="dedupe").text.split(":")
            assert (prefix, scope) == ("dedupe", "proj.task")
            assert len(digest) == 32
            assert set(digest) <= set("0123456789abcdef")
        assert len(preimage(large)) < 200

    @pytest.mark.parametrize(
        ("scope", "shown"),
        [
            ("proj.task-1_x", "proj.task-1_x"),
            ("a:b", "a%3Ab"),
            ("{slot}", "%7Bslot%7D"),
            ("a*?[b]", "a%2A%3F%5Bb%5D"),
            ("a b%~", "a%20b%25%7E"),
            ("größe", "gr%C3%B6%C3%9Fe"),
            ("\ud800", "%ED%A0%80"),
        ],
    )
    def test_a_scope_does_no_harm_in_the_store(self, scope: str, shown: str) -> None:
        """Case 53: no hash tag in a cluster, no separator, nothing that means something to SCAN."""
        assert make_key(call(1), Policy(scope=scope), prefix="dedupe").text.split(":")[1] == shown
        assert make_key(call(1, task=scope), Policy(), prefix="dedupe").text.split(":")[1] == shown

    def test_the_task_tells_keys_apart_unless_a_scope_is_shared(self) -> None:
        one, other = call(1, task="a"), call(1, task="b")
        assert preimage(one) != preimage(other)
        assert preimage(one, scope="shared") == preimage(other, scope="shared")

    def test_two_policies_of_a_list_have_two_keys(self) -> None:
        policies = parse_policies(["until_started", "while_running"], where="here")
        assert len({make_key(call(1), policy, prefix="dedupe").text for policy in policies}) == 2

    def test_neither_lock_nor_times_change_the_key(self) -> None:
        """Tasks of different locks that share a scope keep out of each other's way."""
        assert preimage(call(1), lock="once", keep="1d") == preimage(call(1), lock="while_running", limit=3)


class TestBinding:
    def test_the_way_of_passing_does_not_matter(self) -> None:
        """Case 48: an omitted default equals the explicit one."""
        assert len({preimage(a) for a in (call(1), call(x=1), call(1, 0), call(1, y=0), call(y=0, x=1))}) == 1
        assert preimage(call(1)) != preimage(call(1, 1))
        assert preimage(call(1)) != preimage(call(2))

    def test_args_and_kwargs(self) -> None:
        assert preimage(call(1, 2, of=group, z=3)) == (
            '[1,"proj.task","",["all",{"first":1,"flag":false,"z":3},[2]]]'
        )
        assert preimage(call(1, of=group, z=3)) == preimage(call(first=1, z=3, flag=False, of=group))
        assert preimage(call(1, 2, of=group)) != preimage(call(1, of=group, rest=[2]))
        assert preimage(call(1, 2, of=group)) != preimage(call(1, of=group, rest=2))

    def test_a_keyword_with_the_name_of_a_positional_only_argument(self) -> None:
        calls = (
            call(2, of=positional_only),
            call(of=positional_only, a=2),
            call(2, of=positional_only, a=2),
            call(2, {"a": 2}, of=positional_only),
            call(of=positional_only),
        )
        assert len({preimage(a) for a in calls}) == len(calls)

    def test_a_call_that_does_not_fit_is_never_one_that_does(self) -> None:
        assert preimage(call(2, of=group, first=1)) != preimage(call(1, 2, of=group))
        assert preimage(call(1, 2, 3)) != preimage(call(1, 2))
        assert preimage(call()) != preimage(call(None))
        assert preimage(call(1, z=1)) != preimage(call(1))

    def test_a_task_known_elsewhere_has_the_same_key_here(self) -> None:
        """Case 33: published by name, with keywords or with the rule's ``params``."""
        known = call(1, 2)
        assert preimage(call(of=None, x=1, y=2)) == preimage(known)
        assert preimage(call(1, 2, of=None), params=["x", "y"]) == preimage(known, params=["x", "y"])
        assert preimage(call(1, of=None, y=2), params=["x", "y"]) == preimage(known, params=["x", "y"])
        for fields in ({"key": ["x"]}, {"key": "at:{x}"}):
            assert preimage(call(of=None, x=1), **fields) == preimage(known, **fields)
            assert preimage(call(1, of=None), params=["x"], **fields) == preimage(
                known, params=["x"], **fields
            )

    def test_an_unknown_task_without_params(self) -> None:
        assert preimage(call(1, of=None, y=2)) == '[1,"proj.task","",["all",{"y":2},[1]]]'
        assert preimage(call(1, x=2, of=None), params=["x"]) != preimage(call(2, of=None), params=["x"])

    def test_a_default_without_a_form_is_left_open(self) -> None:
        missing = Opaque()

        def task(x: Any, y: Any = missing) -> None: ...

        open_one = preimage(call(1, of=task))
        assert open_one == '[1,"proj.task","",["all",{"x":1,"y":!absent["proj.task"]},[]]]'
        assert (
            preimage(call(1, of=task), key=["y"]) == '[1,"proj.task","",["names",{"y":!absent["proj.task"]}]]'
        )
        with pytest.raises(UnkeyableArguments, match="argument 'y'"):
            preimage(call(1, missing, of=task))

    def test_json_makes_texts_of_keywords_too(self) -> None:
        raw = Call("proj.task", "id", (), {1: "a", "b": 2}, None)  # type: ignore[dict-item]
        assert preimage(raw) == preimage(Call("proj.task", "id", (), {"1": "a", "b": 2}, None))


class TestCanonicalForm:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (None, "null"),
            (True, "true"),
            (1, "1"),
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            ("1", '"1"'),
            ('a"\\\n', r'"a\"\\\n"'),
            ("é", '"é"'),
            (float("nan"), "NaN"),
            (float("-inf"), "-Infinity"),
            ([1, [2]], "[1,[2]]"),
            ((1, (2,)), "[1,[2]]"),
            (namedtuple("Pair", "a b")(1, 2), "[1,2]"),
            ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
            (OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
            ({10: "x", 2: "y"}, '{"10":"x","2":"y"}'),
            ({1: "a", "1": "b"}, '{"1":"b"}'),
            ({"1": "b", 1: "a"}, '{"1":"a"}'),
            ({None: 1, True: 2, 1.5: 3, Word.RED: 4, Number.ONE: 5}, '{"1.5":3,"null":1,"red":4,"true":5}'),
            (Word.RED, '"red"'),
            (Number.ONE, "1"),
            (b"ab", '{"__type__":"bytes","__value__":"ab"}'),
            (b"\xff", '{"__type__":"base64","__value__":"/w=="}'),
            (Decimal("1.50"), '{"__type__":"decimal","__value__":"1.50"}'),
            (uuid.UUID(int=5), f'{{"__type__":"uuid","__value__":{{"hex":"{5:032x}"}}}}'),
            (date(2020, 1, 2), '{"__type__":"date","__value__":"2020-01-02"}'),
            (time(1, 2), '{"__type__":"time","__value__":"01:02:00"}'),
            (
                datetime(2020, 1, 2, tzinfo=timezone(timedelta(hours=2))),
                '{"__type__":"datetime","__value__":"2020-01-02T00:00:00+02:00"}',
            ),
            (WithJson({"b": 1, "a": (2,)}), '{"a":[2],"b":1}'),
            ({3, 1, 2}, "!set[1,2,3]"),
            (frozenset({"b", "a"}), '!set["a","b"]'),
            (set(), "!set[]"),
        ],
    )
    def test_texts(self, value: Any, text: str) -> None:
        """Case 45: what a task's serializer carries has a key."""
        assert of_value(value) == f'[1,"proj.task","",["all",{{}},[{text}]]]'

    def test_enums_and_dataclasses_are_known_by_class_and_content(self) -> None:
        assert f'!enum["{__name__}.Colour","RED"]' in of_value(Colour.RED)
        assert f'!dataclass["{__name__}.Point",{{"x":[1],"y":0}}]' in of_value(Point((1,)))
        assert len({of_value(v) for v in (Colour.RED, Colour.BLUE, Other.RED, "RED", 1)}) == 5
        assert len({of_value(v) for v in (Point(1), Point(2), Spot(1), {"x": 1, "y": 0})}) == 4

    def test_combined_flags_do_not_depend_on_the_version_of_python(self) -> None:
        assert f'!enum["{__name__}.Bits",3]' in of_value(Bits.A | Bits.B)

    def test_a_long_text_is_known_by_its_digest(self) -> None:
        assert '"' + "x" * 1000 + '"' in of_value("x" * 1000)
        assert "!sha256[" in of_value("x" * 1001)
        assert of_value("x" * 1001) != of_value("x" * 1000 + "y")
        assert of_value({"x" * 2000: 1}) != of_value({"y" * 2000: 1})
        digest = of_value("x" * 1001).split('!sha256["')[1].split('"')[0]
        assert of_value(f'!sha256["{digest}"]') != of_value("x" * 1001)

    def test_half_characters_come_together_as_in_json(self) -> None:
        assert of_value("\ud83d\ude00") == of_value("\U0001f600")
        assert of_value("\ude00\ud83d") != of_value("\U0001f600")
        assert of_value({"\ud83d\ude00": 1, "\uffff": 2}) == of_value(
            loads(dumps({"\ud83d\ude00": 1, "\uffff": 2}))
        )

    @pytest.mark.parametrize(
        ("value", "delivered"),
        [
            ({"__type__": "uuid", "__value__": {"hex": f"{5:032x}", "version": None}}, uuid.UUID(int=5)),
            ({"__type__": "base64", "__value__": "YWI="}, b"ab"),
            ({"__type__": "decimal", "__value__": 3}, Decimal(3)),
        ],
    )
    def test_a_mapping_that_celery_would_decode_is_what_it_decodes_to(
        self, value: Any, delivered: Any
    ) -> None:
        assert of_value(value) == of_value(delivered) == of_value(loads(dumps(value)))

    @pytest.mark.parametrize(
        "value",
        [
            {"__type__": "no such", "__value__": 1},
            {"__type__": "uuid", "__value__": "no uuid"},
            {"__type__": "uuid", "__value__": {1}},
            {"__type__": ["x"], "__value__": 1},
        ],
    )
    def test_and_else_it_is_a_mapping(self, value: Any) -> None:
        assert '{"__type__":' in of_value(value)

    def test_hash_seeds_do_not_matter(self) -> None:
        """Case 45 and 46: the same key in every process."""
        source = (
            "import inspect, uuid\n"
            "from celery_dedupe.core.call import Call\n"
            "from celery_dedupe.core.keys import make_key\n"
            "from celery_dedupe.core.policy import Policy\n"
            "words = {str(number) for number in range(50)}\n"
            "args = (words, frozenset(words), dict.fromkeys(words), uuid.SafeUUID.safe)\n"
            "print(make_key(Call('t', 'i', args, {}, None), Policy(), prefix='p').text)\n"
        )
        keys = {
            subprocess.run(
                [sys.executable, "-c", source],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for seed in ("1", "2")
        }
        assert len(keys) == 1


class TestUnkeyable:
    def deep(self) -> list[Any]:
        inner: list[Any] = []
        inner.append(inner)
        return inner

    @pytest.mark.parametrize(
        ("value", "says"),
        [
            (Opaque(), f"a value of type {__name__}.Opaque has no canonical form"),
            (Opaque, "a value of type builtins.type has no canonical form"),
            (timedelta(1), "a value of type datetime.timedelta has no canonical form"),
            (1j, "a value of type builtins.complex has no canonical form"),
            ({(1, 2): 3}, "a mapping has a key of type builtins.tuple, which JSON cannot carry"),
            ({Colour.RED: 3}, f"a mapping has a key of type {__name__}.Colour, which JSON cannot carry"),
            ([{"a": {Opaque()}}], f"a value of type {__name__}.Opaque has no canonical form"),
        ],
    )
    def test_names_the_argument_and_the_mend(self, value: Any, says: str) -> None:
        """Case 45: a clear error, and never the value's repr."""
        with pytest.raises(UnkeyableArguments) as caught:
            preimage(call(1, value))
        assert str(caught.value).startswith(f"argument 'y' of 'proj.task' cannot be part of a key: {says}; ")
        assert "give its rule a key=" in str(caught.value)
        assert isinstance(caught.value, TypeError)

    def test_a_number_that_python_does_not_write_out(self) -> None:
        with pytest.raises(UnkeyableArguments, match="a whole number has more digits than Python converts"):
            preimage(call(10**5000))

    def test_a_value_that_contains_itself(self) -> None:
        with pytest.raises(
            UnkeyableArguments, match=r"argument 'x' .* nested too deeply, or contains itself"
        ):
            preimage(call(self.deep()))

    def test_names_a_positional_argument_by_its_number(self) -> None:
        with pytest.raises(UnkeyableArguments, match=r"^argument 2 of 'proj.task'"):
            preimage(call(1, Opaque(), of=None))

    def test_an_argument_that_does_not_count_may_be_anything(self) -> None:
        assert preimage(call(1, Opaque()), key=["x"]) == preimage(call(1), key=["x"])

    def test_a_keyword_that_is_no_text(self) -> None:
        with pytest.raises(
            UnkeyableArguments, match=r"no key can be made of a call of 'proj.task': a mapping has"
        ):
            preimage(Call("proj.task", "id", (), {(1,): 2}, None))  # type: ignore[dict-item]


class TestNames:
    def test_only_they_count(self) -> None:
        assert preimage(call(1, 2), key=["x"]) == preimage(call(x=1, y=3), key=["x"])
        assert preimage(call(1, 2), key=["x"]) != preimage(call(2, 2), key=["x"])

    def test_their_order_does_not_matter(self) -> None:
        assert preimage(call(1, 2), key=["x", "y"]) == preimage(call(1, 2), key=["y", "x"])

    def test_no_names_mean_the_task_alone(self) -> None:
        """Case 48: ``key=[]`` is not "all arguments"."""
        assert preimage(call(1), key=[]) == preimage(call(Opaque(), Opaque()), key=[])

    def test_defaults_apply(self) -> None:
        assert preimage(call(1), key=["y"]) == preimage(call(2, y=0), key=["y"])

    def test_groups_as_wholes(self) -> None:
        assert preimage(call(1, 2, 3, of=group), key=["rest"]) == (
            '[1,"proj.task","",["names",{"rest":[2,3]}]]'
        )
        assert '{"options":{"z":1}}' in preimage(call(1, of=group, z=1), key=["options"])

    def test_an_argument_out_of_kwargs(self) -> None:
        assert '{"z":1}' in preimage(call(1, of=group, z=1), key=["z"])
        assert '{"z":!absent["proj.task"]}' in preimage(call(1, of=group), key=["z"])

    def test_a_missing_name_of_another_task_is_another(self) -> None:
        one, other = call(of=None, task="a"), call(of=None, task="b")
        assert preimage(one, key=["z"], scope="s") != preimage(other, key=["z"], scope="s")

    def test_positions_without_names_are_an_error_and_not_one_key_for_all(self) -> None:
        """Case 33: two accounts must never be one because their names are unknown."""
        with pytest.raises(
            UnkeyableArguments, match=r"'proj.task' needs the argument 'x', .* in the rule's params"
        ):
            preimage(call(7, of=None), key=["x"])
        with pytest.raises(UnkeyableArguments, match="needs the argument 'x'"):
            preimage(call(7, of=None), key="{x}")

    def test_a_name_that_the_task_does_not_have(self) -> None:
        with pytest.raises(
            ConfigurationError, match=r"^the rule of 'proj.task': key names 'z', an argument that"
        ):
            preimage(call(1), key=["z"])


class TestTemplates:
    def test_values_follow_their_mappings_and_lists(self) -> None:
        order = {"id": 7, "lines": [{"sku": "a"}], 3: "three"}
        for template, text in (
            ("o:{x.id}", '["o:",[7]]'),
            ("{x.lines.0.sku}", '[["a"]]'),
            ("{x.3}", '[["three"]]'),
            ("{{{x.id}}}", '["{",[7],"}"]'),
            ("{x.lines}{y}", '[[[{"sku":"a"}]],[0]]'),
        ):
            assert preimage(call(order), key=template) == f'[1,"proj.task","",["text",{text}]]'
            assert preimage(call(loads(dumps(order))), key=template) == preimage(call(order), key=template)

    def test_the_later_of_two_keys_that_json_makes_one(self) -> None:
        value = {3: "first", "3": "second"}
        assert preimage(call(value), key="{x.3}") == preimage(call(loads(dumps(value))), key="{x.3}")

    @pytest.mark.parametrize(
        ("value", "template"),
        [
            ({"a": 1}, "{x.b}"),
            ([1], "{x.1}"),
            ([1], "{x.a}"),
            ([1], "{x.-1}"),
            ("text", "{x.upper}"),
            ("text", "{x.0}"),
            (Point(1), "{x.y}"),
            (None, "{x.id}"),
        ],
    )
    def test_only_items_are_followed_never_attributes(self, value: Any, template: str) -> None:
        with pytest.raises(UnkeyableArguments, match=r"argument 'x' of 'proj.task' has no item"):
            preimage(call(value), key=template)

    def test_a_mapping_with_strange_keys(self) -> None:
        with pytest.raises(UnkeyableArguments, match="which JSON cannot carry"):
            preimage(call({(1,): 1}), key="{x.a}")

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (("a:b", "c"), ("a", "b:c")),
            (("1", 1), (1, "1")),
            (('a"],["b', "c"), ("a", 'b"],["c')),
            (("", ":"), (":", "")),
        ],
    )
    def test_no_value_passes_for_another(self, one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
        """Keys by concatenation would be equal here."""
        assert preimage(call(*one), key="{x}:{y}") != preimage(call(*other), key="{x}:{y}")

    def test_no_value_passes_for_a_literal(self) -> None:
        assert preimage(call("b"), key="a{x}") != preimage(call("a"), key="{x}b")
        assert preimage(call("b"), key="a{x}") != preimage(call(1), key=parse_template("ab"))

    def test_a_literal_of_a_call(self) -> None:
        (policy,) = overlay((Policy(),), {"key": "order 7"}, where="here")
        assert make_key(call(1), policy, prefix="d") == make_key(call(2), policy, prefix="d")
        assert make_key(call(1), policy, prefix="d").preimage == '[1,"proj.task","",["text",["order 7"]]]'


class TestFunctions:
    def test_get_the_arguments_as_they_were_passed(self) -> None:
        seen: list[Any] = []

        def account(*args: Any, **kwargs: Any) -> Any:
            seen.append((args, kwargs))
            return {"account": args[0]}

        assert preimage(call(7, y=1), key=account) == '[1,"proj.task","",["function",{"account":7}]]'
        assert seen == [((7,), {"y": 1})]

    def test_by_dotted_path(self) -> None:
        assert preimage(call([3, 1]), key="builtins:sorted") == '[1,"proj.task","",["function",[1,3]]]'

    def test_what_they_return_needs_a_form(self) -> None:
        with pytest.raises(
            UnkeyableArguments, match=r"no key can be made of a call of 'proj.task': a value of type"
        ):
            preimage(call(1), key=lambda *args: Opaque())

    def test_their_errors_are_told(self) -> None:
        with pytest.raises(
            UnkeyableArguments, match=r"the key function of 'proj.task' raised ZeroDivisionError"
        ) as caught:
            preimage(call(1), key=lambda x: x / 0)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_a_path_to_nothing(self) -> None:
        with pytest.raises(
            ConfigurationError, match=r"^the rule of 'proj.task': key 'no_such:key' cannot be imported"
        ):
            preimage(call(1), key="no_such:key")


class TestCheckPolicy:
    WHERE = "dedupe_rules['a.*'] for task a.b"

    def check(self, of: Callable[..., Any] | None = two, **fields: Any) -> None:
        check_policy(Policy(**fields), None if of is None else inspect.signature(of), self.WHERE)

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"key": []},
            {"key": ["x", "y"]},
            {"key": "{x.id}:{y}"},
            {"key": "text{{}}{x}"},
            {"key": "json:dumps"},
            {"key": len},
            {"params": ["x"]},
            {"params": ["x", "y"]},
        ],
    )
    def test_passes_what_the_task_has(self, fields: Mapping[str, Any]) -> None:
        self.check(**fields)

    def test_kwargs_take_any_name(self) -> None:
        self.check(group, key=["anything"])

    def test_an_unknown_task_is_not_judged(self) -> None:
        self.check(None, key=["z"], params=["q"])

    @pytest.mark.parametrize(
        ("fields", "says"),
        [
            (
                {"key": ["xx"]},
                "key names 'xx', an argument that the task does not have; did you mean 'x'? Known names: x",
            ),
            ({"key": "{z}"}, "key names 'z', an argument that the task does not have; known names: x, y"),
            (
                {"params": ["x", "z"]},
                "params names 'z', an argument that the task does not have; known names: x, y",
            ),
            ({"params": ["y", "x"]}, "params ['y', 'x'] must be in the task's own order ['x', 'y']"),
            ({"key": "no_such:key"}, "key 'no_such:key' cannot be imported (ModuleNotFoundError: "),
        ],
    )
    def test_mistakes(self, fields: Mapping[str, Any], says: str) -> None:
        """Case 48: a rule for an argument that the task does not have is an error at start."""
        with pytest.raises(ConfigurationError) as caught:
            self.check(**fields)
        assert str(caught.value).startswith(f"{self.WHERE}: {says}")

    def test_a_task_without_arguments(self) -> None:
        with pytest.raises(ConfigurationError, match="known names: none"):
            self.check(lambda: None, key=["x"])

    def test_a_path_is_checked_even_where_the_task_is_unknown(self) -> None:
        with pytest.raises(ConfigurationError, match="cannot be imported"):
            self.check(None, key="no_such:key")


def test_golden_file_is_plain_json() -> None:
    assert all(isinstance(case["key"], str) for case in json.loads(GOLDEN.read_text()))
