"""Settings: where they are read from, which URL is chosen, and what each mistake is told."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_dedupe.core.policy import Policy
from celery_dedupe.core.urls import mask
from celery_dedupe.errors import ConfigurationError
from celery_dedupe.settings import Settings, read_settings, store_names


@pytest.fixture(autouse=True)
def _no_servers_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROKER_URL", "BROKER_READ_URL", "BROKER_WRITE_URL", "RESULT_BACKEND"):
        monkeypatch.delenv(f"CELERY_{name}", raising=False)


def app_with(source: Mapping[str, Any] | None = None, namespace: str | None = None, **conf: Any) -> Celery:
    app = Celery("proj", set_as_current=False)
    if source is not None:
        app.config_from_object(SimpleNamespace(**source), namespace=namespace)
    app.conf.update(conf)
    return app


def read(app: Celery | None = None, **overrides: Any) -> Settings:
    return read_settings((app or app_with()).conf, **overrides)


def message_of(app: Celery | None = None, **overrides: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(app, **overrides)
    return str(caught.value)


class TestSources:
    def test_defaults(self) -> None:
        settings = read(url="memory://")
        address = settings.stores["default"]
        assert (address.url, address.client, settings.mode, settings.prefix) == (
            "memory://",
            None,
            "enforce",
            "dedupe",
        )
        assert (settings.eager, settings.stores["default"].options, settings.defaults, settings.policies) == (
            False,
            {},
            {},
            {},
        )
        assert settings.rules.resolve("any").policies == ()

    def test_all_from_the_configuration(self) -> None:
        settings = read(
            app_with(
                dedupe_url="redis://h/3",
                dedupe_rules={"a.*": "mine"},
                dedupe_policies={"mine": {"key": []}},
                dedupe_defaults={"lease": "5s"},
                dedupe_mode="observe",
                dedupe_prefix="team:dedupe",
                dedupe_store_options={"socket_timeout": 3},
                dedupe_eager=True,
            )
        )
        assert (settings.stores["default"].url, settings.mode, settings.prefix) == (
            "redis://h/3",
            "observe",
            "team:dedupe",
        )
        assert (settings.eager, settings.stores["default"].options) == (True, {"socket_timeout": 3})
        assert settings.rules.resolve("a.b").policies == (Policy(key=[], lease=5),)
        assert (settings.defaults, settings.policies) == ({"lease": "5s"}, {"mine": {"key": []}})

    def test_from_an_object(self) -> None:
        assert read(app_with({"dedupe_url": "redis://object"})).stores["default"].url == "redis://object"

    @pytest.mark.parametrize("namespace", ["CELERY", "celery"])
    def test_from_a_namespace(self, namespace: str) -> None:
        """Django: ``CELERY_DEDUPE_URL``."""
        start = f"{namespace}_DEDUPE_" if namespace.isupper() else f"{namespace}_dedupe_"
        fields = {"url": "redis://django", "rules": {"a": "once"}}
        source = {
            start + (name.upper() if start.isupper() else name): value for name, value in fields.items()
        }
        settings = read(app_with(source, namespace=namespace))
        assert settings.stores["default"].url == "redis://django"
        assert settings.rules.resolve("a").policies

    def test_what_code_sets_beats_the_configuration(self) -> None:
        """Case 51: whatever the order, and on Celery 5.3 with a namespace too."""
        source = {"CELERY_DEDUPE_URL": "redis://file", "CELERY_DEDUPE_PREFIX": "file"}
        late = app_with(source, namespace="CELERY")
        assert late.conf.task_always_eager is False
        late.conf.dedupe_url = "redis://code"
        early = Celery("proj", set_as_current=False)
        early.conf.dedupe_url = "redis://code"
        early.config_from_object(SimpleNamespace(**source), namespace="CELERY")
        updated = app_with(source, namespace="CELERY", dedupe_url="redis://code")
        for app in (late, early, updated):
            assert read(app).stores["default"].url == "redis://code"
            assert read(app).prefix == "file"

    def test_arguments_beat_the_configuration(self) -> None:
        """Case 51: ``Dedupe(app, ...)``."""
        app = app_with(
            dedupe_url="redis://file", dedupe_rules={"a": "once"}, dedupe_mode="off", dedupe_prefix="p"
        )
        settings = read(app, url="redis://code", rules={"b": "once"}, mode="enforce", prefix=None)
        assert (settings.stores["default"].url, settings.mode, settings.prefix) == (
            "redis://code",
            "enforce",
            "p",
        )
        assert not settings.rules.resolve("a").policies
        assert settings.rules.resolve("b").policies

    def test_a_client_takes_the_place_of_a_url(self) -> None:
        client = object()
        settings = read(app_with(dedupe_url="redis://file"), client=client)
        assert settings.stores["default"].client is client
        assert settings.stores["default"].url is None

    def test_off_needs_no_store(self) -> None:
        settings = read(mode="off", rules={"a": "once"})
        assert (settings.stores, settings.mode) == ({}, "off")

    def test_settings_of_others_are_left_alone(self) -> None:
        source = {"DEDUPE_URL": "not ours", "CELERY_DEDUPE_URL": "redis://ours", "DEDUPLICATE": 1}
        assert read(app_with(source, namespace="CELERY")).stores["default"].url == "redis://ours"
        assert (
            read(app_with({"dedupe_url": "redis://ours", "DEDUPE_OTHER": 1})).stores["default"].url
            == "redis://ours"
        )


class TestUrl:
    @pytest.mark.parametrize(
        "url",
        [
            "redis://localhost:6379/3",
            "redis://",
            "rediss://user:pw@h:1/0",
            "redis+socket:///tmp/redis.sock?virtual_host=1",
            "sentinel://h1:26379;sentinel://h2:26379/0",
            "redis+cluster://h1:7000",
            "rediss+cluster://h1:7000",
            "memory://",
            "db+postgresql://u:p@h/d",
            "db+mysql+pymysql://u:p@h/d?charset=utf8mb4",
            "db+mariadb://h/d",
            "db+sqlite:////var/lib/claims.sqlite",
        ],
    )
    def test_accepted(self, url: str) -> None:
        assert read(app_with(dedupe_url=url)).stores["default"].url == url

    def test_schemes_may_be_written_in_upper_case(self) -> None:
        assert read(app_with(dedupe_url="REDIS://Host")).stores["default"].url == "redis://Host"

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            (
                "reddis://u:secret@h",
                "dedupe_url 'reddis://u:***@h' has no scheme that can hold claims; did you mean 'redis'?",
            ),
            (
                "amqp://u:secret@h//",
                "dedupe_url 'amqp://u:***@h//' has no scheme that can hold claims; known names: db+mariadb, ",
            ),
            ("localhost:6379", "dedupe_url 'localhost:6379' has no scheme that can hold claims"),
            ("redis", "dedupe_url 'redis' has no scheme"),
            (
                "postgresql+psycopg://u:secret@h/d",
                "dedupe_url 'postgresql+psycopg://u:***@h/d': write a database with db+ in front, as Celery "
                "does: 'db+postgresql+psycopg://u:***@h/d'",
            ),
            ("sqlite:///file", "'db+sqlite:///file'"),
            ("db+postgres://u:secret@h/d", "did you mean 'db+postgresql'?"),
            ("db+oracle://h/d", "'db+oracle://h/d' has no scheme that can hold claims; "),
            (
                "redis://:secret@a;redis://b",
                "dedupe_url 'redis://:***@a;redis://b' lists several servers, but claims live on one",
            ),
            (
                7,
                "dedupe_url is of type int; write a URL such as 'redis://localhost:6379/0', or hand a ready ",
            ),
        ],
    )
    def test_refused(self, url: object, says: str) -> None:
        """Case 52: no guess, and no password in the message."""
        message = message_of(app_with(dedupe_url=url))
        assert message.startswith(says) or says in message
        assert "secret" not in message

    def test_celerys_words_for_certificates(self) -> None:
        url = (
            read(app_with(dedupe_url="rediss://h?ssl_cert_reqs=CERT_REQUIRED&x=CERT_NONE"))
            .stores["default"]
            .url
        )
        assert url == "rediss://h?ssl_cert_reqs=required&x=CERT_NONE"


class TestUrlOfCelery:
    @pytest.mark.parametrize(
        ("conf", "url"),
        [
            ({"result_backend": "redis://b/1", "broker_url": "redis://a/0"}, "redis://b/1"),
            ({"result_backend": "rpc://", "broker_url": "redis://a/0"}, "redis://a/0"),
            ({"broker_url": "rediss://a/0"}, "rediss://a/0"),
            ({"broker_url": "amqp://", "broker_write_url": "redis://w"}, "redis://w"),
            ({"broker_url": "amqp://", "broker_read_url": "redis://r"}, "redis://r"),
            ({"result_backend": "db+sqlite://", "broker_url": "redis://a"}, "redis://a"),
            ({"result_backend": "redis"}, "redis://"),
            ({"result_backend": "redis+socket:///tmp/s"}, "redis+socket:///tmp/s"),
            ({"result_backend": "socket:///tmp/s"}, "redis+socket:///tmp/s"),
            ({"broker_url": ["redis://a"]}, "redis://a"),
        ],
    )
    def test_the_result_backend_then_the_broker(self, conf: Mapping[str, Any], url: str) -> None:
        assert read(app_with(**conf)).stores["default"].url == url

    def test_sentinels_with_their_master(self) -> None:
        """Case 52: the right client for a Sentinel list."""
        app = app_with(
            broker_url="sentinel://a;sentinel://b",
            broker_transport_options={"master_name": "m", "sentinel_kwargs": {"password": "x"}, "other": 1},
        )
        settings = read(app)
        assert settings.stores["default"].url == "sentinel://a;sentinel://b"
        assert settings.stores["default"].options == {
            "master_name": "m",
            "sentinel_kwargs": {"password": "x"},
        }
        assert read(app, store_options={"master_name": "n"}).stores["default"].options["master_name"] == "n"

    def test_tls(self) -> None:
        tls = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/ca.pem"}
        settings = read(app_with(result_backend="redis://h/1", redis_backend_use_ssl=tls))
        assert (settings.stores["default"].url, settings.stores["default"].options) == ("rediss://h/1", tls)
        settings = read(app_with(broker_url="redis://h", broker_use_ssl=True))
        assert (settings.stores["default"].url, settings.stores["default"].options) == ("rediss://h", {})
        settings = read(app_with(broker_url="rediss://h", broker_use_ssl={"ssl_cert_reqs": "CERT_NONE"}))
        assert (settings.stores["default"].url, settings.stores["default"].options) == (
            "rediss://h",
            {"ssl_cert_reqs": "none"},
        )
        settings = read(app_with(broker_url="sentinel://h", broker_use_ssl={"ssl_cert_reqs": "none"}))
        assert settings.stores["default"].options == {"ssl": True, "ssl_cert_reqs": "none"}

    def test_a_url_of_our_own_takes_nothing_from_celery(self) -> None:
        app = app_with(dedupe_url="redis://own", broker_url="redis://h", broker_use_ssl={"ssl_ca_certs": "x"})
        assert (read(app).stores["default"].url, read(app).stores["default"].options) == ("redis://own", {})

    @pytest.mark.parametrize("broker", ["redis://:secret@a;redis://b", ["redis://:secret@a", "redis://b"]])
    def test_a_failover_list_is_not_guessed_from(self, broker: object) -> None:
        """Case 52."""
        assert message_of(app_with(broker_url=broker)) == (
            "dedupe_url is not set, and broker_url 'redis://:***@a;redis://b' lists several servers, "
            "but claims live on one; name that one, or use sentinel:// or redis+cluster://"
        )

    def test_nothing_to_choose_from(self) -> None:
        """Case 52: ``amqp://`` is not taken for a store."""
        message = message_of(app_with(result_backend="rpc://", broker_url="amqp://u:secret@h//"))
        assert message == (
            "dedupe_url is not set, and Celery's own servers are not Redis (result_backend is 'rpc://', "
            "broker_url is 'amqp://u:***@h//'); set it to a Redis that all workers and publishers reach, "
            "such as 'redis://localhost:6379/0'"
        )
        assert "(none is set)" in message_of()


class TestMistakes:
    @pytest.mark.parametrize(
        ("conf", "says"),
        [
            (
                {"dedupe_ruls": {}},
                "dedupe_ruls is no setting; did you mean 'dedupe_rules'? Known names: dedupe_defaults, ",
            ),
            ({"dedupe_client": 1}, "dedupe_client is no setting; "),
            (
                {"dedupe_mode": "enforced"},
                "dedupe_mode 'enforced' is no mode; did you mean 'enforce'? Known names: enforce, ",
            ),
            ({"dedupe_mode": True}, "dedupe_mode True is no mode; known names: enforce, observe, off"),
            ({"dedupe_rules": "a.*"}, "dedupe_rules is of type str; write a dict"),
            (
                {"dedupe_rules": {"a": {"leese": 1}}},
                "dedupe_rules['a']: unknown field 'leese'; did you mean 'lease'?",
            ),
            ({"dedupe_prefix": ""}, "dedupe_prefix '' may hold letters, digits and . : _ - only"),
            ({"dedupe_prefix": "{a}"}, "dedupe_prefix '{a}' may hold letters"),
            ({"dedupe_prefix": "a*"}, "dedupe_prefix 'a*' may hold letters"),
            ({"dedupe_prefix": 1}, "dedupe_prefix 1 may hold letters"),
            ({"dedupe_eager": "yes"}, "dedupe_eager 'yes' is neither True nor False"),
            (
                {"dedupe_store_options": 1},
                "dedupe_store_options is of type int; write a dict with names as keys",
            ),
            (
                {"dedupe_store_options": {1: 2}},
                "dedupe_store_options has the key 1; write a dict with names as keys",
            ),
            ({"dedupe_defaults": "once"}, "dedupe_defaults is of type str; write a dict"),
            (
                {"dedupe_defaults": {"lease": "5 parsecs"}},
                "dedupe_defaults: lease '5 parsecs' is not a duration",
            ),
            (
                {"dedupe_defaults": {"rate": "1/sec"}},
                "dedupe_defaults: rate '1/sec' is no rate",
            ),
            (
                {"dedupe_policies": {"once": {}}},
                "dedupe_policies['once'] has the name of a lock; give the policy another",
            ),
            (
                {"dedupe_policies": {"a": {"kep": 1}}},
                "dedupe_policies['a']: unknown field 'kep'; did you mean 'keep'?",
            ),
            ({"dedupe_policies": {"a": "b", "b": "a"}}, "dedupe_policies['a']: "),
        ],
    )
    def test_in_the_configuration(self, conf: Mapping[str, Any], says: str) -> None:
        """Case 48: a misspelt option is an error at start."""
        assert message_of(app_with(**{"dedupe_url": "memory://", **conf})).startswith(says)

    def test_in_a_namespace_they_are_named_as_they_were_written(self) -> None:
        message = message_of(app_with({"CELERY_DEDUPE_RULS": {}}, namespace="CELERY"))
        assert message.startswith("CELERY_DEDUPE_RULS is no setting; did you mean 'CELERY_DEDUPE_RULES'?")

    def test_upper_case_without_a_namespace(self) -> None:
        assert message_of(app_with({"DEDUPE_URL": "redis://"})).startswith(
            "DEDUPE_URL is not read; write it in lower"
        )

    @pytest.mark.parametrize(
        ("overrides", "says"),
        [
            (
                {"urls": "memory://"},
                "Dedupe(app, urls=...) is unknown; did you mean 'url'? Known names: client, ",
            ),
            (
                {"url": "memory://", "client": object()},
                "Dedupe(app, client=...) and Dedupe(app, url=...) both say where the default store is",
            ),
            ({"url": "http://h"}, "Dedupe(app, url=...) 'http://h' has no scheme"),
            (
                {"url": "memory://", "mode": "of"},
                "Dedupe(app, mode=...) 'of' is no mode; did you mean 'off'?",
            ),
            (
                {"url": "memory://", "rules": {"a": "onse"}},
                "Dedupe(app, rules=...)['a']: there is no lock or policy 'onse'",
            ),
            ({"url": "memory://", "policies": {"a": 7}}, "Dedupe(app, policies=...)['a']: 7 is no policy"),
        ],
    )
    def test_in_arguments(self, overrides: Mapping[str, Any], says: str) -> None:
        assert message_of(**overrides).startswith(says)


class TestSecrets:
    @pytest.mark.parametrize(
        ("url", "masked"),
        [
            ("redis://h:1/0", "redis://h:1/0"),
            ("redis://:secret@h:1/0", "redis://:***@h:1/0"),
            ("rediss://user:secret@h/0", "rediss://user:***@h/0"),
            ("redis://user:se@cr/et?@h/0", "redis://user:***@h/0"),
            ("redis://:secret@[::1]:6379/0", "redis://:***@[::1]:6379/0"),
            ("sentinel://:secret@a:1;sentinel://:secret@b:2/0", "sentinel://:***@a:1;sentinel://:***@b:2/0"),
            ("redis://:secret@a,redis://:secret@b", "redis://:***@a,redis://:***@b"),
            ("redis://:sec;ret@a", "redis://:***@a"),
            ("redis://h?password=secret&db=1", "redis://h?password=***&db=1"),
            ("redis://h?db=1&sentinel_password=secret", "redis://h?db=1&sentinel_password=***"),
            ("rediss://h?ssl_password=secret", "rediss://h?ssl_password=***"),
            ("redis+socket:///tmp/s?password=secret", "redis+socket:///tmp/s?password=***"),
            ("redis+socket://user:secret@/tmp/s", "redis+socket://user:***@/tmp/s"),
            ("db+postgresql://u:secret@h/d", "db+postgresql://u:***@h/d"),
            ("secret", "secret"),
        ],
    )
    def test_mask(self, url: str, masked: str) -> None:
        assert mask(url) == masked

    def test_no_password_in_the_repr(self) -> None:
        settings = read(url="redis://:secret@h", store_options={"password": "secret"}, rules={"a.*": "once"})
        assert repr(settings) == (
            "Settings(stores={default: redis://:***@h}, mode='enforce', prefix='dedupe', rules=RuleSet(a.*))"
        )
        assert settings.stores["default"].url == "redis://:secret@h"

    def test_a_client_is_not_shown_either(self) -> None:
        assert "secret" not in repr(read(client=SimpleNamespace(password="secret")))

    def test_options_are_not_shown_in_errors(self) -> None:
        for options in (["secret"], {"password": "secret", 1: "secret"}):
            assert "secret" not in message_of(url="memory://", store_options=options)


class TestStores:
    CONF: Mapping[str, Any] = {"dedupe_url": "redis://file", "dedupe_stores": {"ledger": "db+sqlite:////f"}}

    def test_each_has_an_address(self) -> None:
        client = object()
        stores = {
            "a": "redis://a",
            "b.c-1": {"url": "DB+sqlite:////b", "options": {"timeout": 2}},
            "c": client,
        }
        found = read(url="memory://", stores=stores).stores
        assert {name: (address.url, address.client) for name, address in found.items()} == {
            "default": ("memory://", None),
            "a": ("redis://a", None),
            "b.c-1": ("db+sqlite:////b", None),
            "c": (None, client),
        }
        assert found["b.c-1"].options == {"timeout": 2}

    def test_the_default_is_the_url_or_a_store_or_celerys(self) -> None:
        assert read(app_with(**self.CONF)).stores["default"].url == "redis://file"
        assert read(app_with(dedupe_stores={"default": "redis://d"})).stores["default"].url == "redis://d"
        app = app_with(dedupe_stores={"ledger": "memory://"}, broker_url="redis://broker")
        assert read(app).stores["default"].url == "redis://broker"

    def test_there_need_be_no_default_where_none_is_used(self) -> None:
        conf = {"broker_url": "amqp://", "dedupe_stores": {"ledger": "memory://"}}
        app = app_with(**conf, dedupe_rules={"t": {"lock": "once", "store": "ledger"}})
        assert list(read(app).stores) == ["ledger"]
        message = message_of(app_with(**conf, dedupe_rules={"t": ["once"]}))
        assert message.startswith("dedupe_rules['t']: store 'default' is not in dedupe_stores; ")
        assert message.endswith("; or set dedupe_url")

    def test_arguments_beat_the_configuration(self) -> None:
        app = app_with(**self.CONF)
        found = read(app, stores={"default": "redis://code"}).stores
        assert {name: address.url for name, address in found.items()} == {"default": "redis://code"}
        app = app_with(dedupe_stores={"default": "redis://file"})
        assert read(app, url="redis://code").stores["default"].url == "redis://code"

    @pytest.mark.parametrize(
        ("conf", "says"),
        [
            (
                {"dedupe_stores": {"default": "redis://h"}},
                "dedupe_url and dedupe_stores both say where the default store is; leave one out",
            ),
            (
                {"dedupe_stores": {"ledger": "redis://h"}, "dedupe_rules": {"t": {"store": "leger"}}},
                "dedupe_rules['t']: store 'leger' is not in dedupe_stores; did you mean 'ledger'?",
            ),
            (
                {"dedupe_rules": {"t": {"store": ""}}},
                "dedupe_rules['t']: store '' is no store: write a name ",
            ),
            ({"dedupe_stores": "redis://h"}, "dedupe_stores is of type str; write a dict of names to URLs"),
            (
                {"dedupe_stores": {"a/b": "redis://h"}},
                "dedupe_stores has the key 'a/b': a name holds letters",
            ),
            (
                {"dedupe_stores": {"a": "redsi://u:secret@h"}},
                "dedupe_stores['a'] 'redsi://u:***@h' has no scheme that can hold claims; did you",
            ),
            ({"dedupe_stores": {"a": {"uri": "redis://h"}}}, "dedupe_stores['a'] has the key 'uri'; did you"),
            ({"dedupe_stores": {"a": {}}}, "dedupe_stores['a']: write a URL, or {'url': ..., 'options': "),
        ],
    )
    def test_mistakes(self, conf: Mapping[str, Any], says: str) -> None:
        assert message_of(app_with(**{"dedupe_url": "memory://", **conf})).startswith(says)

    def test_options_of_the_default_belong_beside_its_url(self) -> None:
        app = app_with(dedupe_stores={"default": "redis://h"}, dedupe_store_options={"db": 1})
        assert message_of(app).startswith("dedupe_store_options is for dedupe_url; write the options of ")

    def test_no_password_is_shown(self) -> None:
        settings = read(app_with(dedupe_stores={"default": "redis://u:secret@h", "b": object()}))
        assert "secret" not in repr(settings)
        assert "{default: redis://u:***@h, b: a client of the app's own}" in repr(settings)

    def test_names_are_known_whatever_else_is_wrong(self) -> None:
        app = app_with(dedupe_stores={"ledger": "no URL"}, dedupe_rules={"t": "onse"})
        assert store_names(app.conf) == {"default", "ledger"}
