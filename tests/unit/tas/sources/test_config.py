"""The configuration of sources, and the errors of an invalid one."""

import pytest

from tas.sources.config import (
    SourceConfig,
    parse_source_config,
)
from tas.sources.series import MAX_QUERY, Aggregate, Mappings, MetricMapping
from tas.values.blanks import ANY, ValueRules
from tas.values.document import DocumentError
from tas.values.http_config import Authorization, BasicAuth, HttpConfig, TlsConfig
from tas.values.quantity import NANO, Quantity

SOURCES = ("edge", "prometheus")


def parse(document: object) -> SourceConfig:
    return parse_source_config("sources.yaml", document, sources=SOURCES)


def mistakes(document: object) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        parse(document)
    return [str(mistake) for mistake in caught.value.mistakes]


@pytest.mark.parametrize("document", [None, {}, {"metrics": None, "sources": None, "node_label": None}])
def test_an_empty_file_is_the_default_configuration(document: object) -> None:
    assert parse(document) == SourceConfig()


def test_all_fields_are_read() -> None:
    config = parse(
        {
            "node_label": "kubernetes_node",
            "metrics": {
                "load": {"query": "max by (instance) (load)", "node_label": "instance", "aggregate": "max"},
                "disk-used": {"series": "node:disk:ratio", "labels": {"mountpoint": "/", "fstype": ""}},
                "plain": {},
            },
            "sources": {
                "prometheus": {
                    "authorization": {"credentials_file": "token"},
                    "tls_config": {
                        "ca_file": "ca.crt",
                        "cert_file": "tls.crt",
                        "key_file": "tls.key",
                        "server_name": "prometheus.example",
                        "insecure_skip_verify": True,
                    },
                },
                "edge": {"basic_auth": {"username": "tas", "password_file": "password"}},
            },
        }
    )
    assert config.mappings == Mappings(
        node_label="kubernetes_node",
        metrics={
            "load": MetricMapping(query="max by (instance) (load)", node_label="instance", aggregate=Aggregate.MAX),
            "disk-used": MetricMapping(series="node:disk:ratio", labels={"mountpoint": "/", "fstype": ""}),
            "plain": MetricMapping(),
        },
    )
    assert config.http == {
        "prometheus": HttpConfig(
            authorization=Authorization(type="Bearer", credentials_file="token"),
            tls_config=TlsConfig(
                ca_file="ca.crt",
                cert_file="tls.crt",
                key_file="tls.key",
                server_name="prometheus.example",
                insecure_skip_verify=True,
            ),
        ),
        "edge": HttpConfig(basic_auth=BasicAuth(username="tas", password_file="password")),
    }


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "document = <list>: must be an object with the fields metrics, node_label, replica_labels, sources"),
        (
            {"metric": {}},
            "metric = <dict>: is not a known field: must be one of metrics, node_label, replica_labels, sources",
        ),
        ({"metrics": []}, "metrics = []: must be an object"),
        ({"metrics": {"a b": {}}}, "metrics = 'a b': must be a metric's name"),
        (
            {"metrics": {"m": None}},
            "metrics.m = None: must be an object with the fields aggregate, blanks, labels, max, min, node_label, "
            "query, replica_labels, series, tolerance",
        ),
        ({"metrics": {"m": "load"}}, "metrics.m = 'load': must be an object with the fields aggregate"),
        (
            {"metrics": {"m": {"quary": "x"}}},
            "metrics.m.quary = <str>: is not a known field: must be one of aggregate, blanks, labels, max, min, ",
        ),
        (
            {"metrics": {"m": {"query": 5}}},
            "metrics.m.query = 5: must be text of at most 4000 characters that is not empty",
        ),
        ({"metrics": {"m": {"query": " "}}}, "metrics.m.query = ' ': must be text of at most"),
        ({"metrics": {"m": {"query": "x" * (MAX_QUERY + 1)}}}, f"must be text of at most {MAX_QUERY} characters"),
        ({"metrics": {"m": {"series": "a-b"}}}, "metrics.m.series = 'a-b': must be text that matches "),
        ({"metrics": {"m": {"series": "a\n"}}}, "metrics.m.series = 'a\\n': must be text that matches"),
        (
            {"metrics": {"m": {"labels": {"a-b": "x"}}}},
            "metrics.m.labels = 'an object of a-b': each name must be text ",
        ),
        ({"metrics": {"m": {"labels": {"a": 1}}}}, "metrics.m.labels[...] = 'an object of a': must be text"),
        ({"metrics": {"m": {"labels": {"__name__": "x"}}}}, "is the name of the series: set the field series instead"),
        ({"metrics": {"m": {"aggregate": "mean"}}}, "metrics.m.aggregate = 'mean': must be one of min, max, avg, sum"),
        ({"node_label": "a/b"}, "node_label = 'a/b': must be text that matches "),
        (
            {"sources": {"other": {}}},
            "sources = 'other': is not a polled source: must be one of edge, prometheus",
        ),
        ({"sources": {"edge": {"basic_auth": {}}}}, "sources.edge.basic_auth = 'an object of ': must have the fie"),
        (
            {"sources": {"edge": {"basic_auth": {"username": "a"}, "authorization": {"credentials": "b"}}}},
            "authorization and basic_auth must not both be given",
        ),
        ({"sources": {"edge": {"basic_auth": {"username": "a:b"}}}}, "username must not contain a colon"),
        ({"sources": {"edge": {"authorization": {}}}}, "exactly one of credentials and credentials_file must be given"),
        (
            {"sources": {"edge": {"authorization": {"credentials": "b", "credentials_file": "c"}}}},
            "exactly one of credentials and credentials_file must be given",
        ),
        (
            {"sources": {"edge": {"basic_auth": {"username": "a", "password": "b", "password_file": "c"}}}},
            "password and password_file must not both be given",
        ),
        ({"metrics": {"m": {"min": "much"}}}, "'much' is no Kubernetes quantity"),
        ({"metrics": {"m": {"min": 2, "max": "1500m"}}}, "max = 1500m is less than min = 2"),
        ({"metrics": {"m": {"max": True}}}, "metrics.m.max = True: must be"),
        ({"metrics": {"m": {"blanks": 1}}}, "metrics.m.blanks = 1: must be"),
        ({"metrics": {"m": {"tolerance": 0}}}, "metrics.m.tolerance = 0: must be"),
        (
            {"sources": {"edge": {"tls_config": {"cert_file": "a"}}}},
            "sources.edge.tls_config = 'an object of cert_file': cert_file and key_file must be given together",
        ),
    ],
)
def test_an_error_names_the_file_the_field_and_the_value(document: object, message: str) -> None:
    (mistake,) = mistakes(document)
    assert mistake.startswith("sources.yaml: ")
    assert message in mistake


def test_which_values_of_a_metric_count_is_read() -> None:
    config = parse({"metrics": {"m": {"min": "500m", "max": 110.5, "blanks": True, "tolerance": 0.2}}})
    rules = config.mappings.of("m").rules
    assert rules == ValueRules(blanks=True, least=Quantity(NANO // 2), most=Quantity(110 * NANO + NANO // 2))
    assert config.mappings.tolerances == {"m": 0.2}
    assert config.mappings.of("other").rules == ANY


def test_every_wrong_entry_is_reported_at_once() -> None:
    messages = mistakes({"metrics": {"a": {"query": 1}, "b": {"x": 1}, "c": {}}, "node_label": 3, "other": 1})
    assert [each.split(" = ")[0] for each in messages] == [
        f"sources.yaml: {field}" for field in ("other", "metrics.a.query", "metrics.b.x", "node_label")
    ]


def test_an_error_never_contains_a_secret() -> None:
    for secret in (["hunter2"], {"x": "hunter2"}, "hunter2" * 1000):
        for http in ({"basic_auth": {"username": "a", "password": secret}}, {"authorization": {"credentials": secret}}):
            (message,) = mistakes({"sources": {"edge": http}})
            assert "'a secret'" in message
            assert "hunter2" not in message
        (message,) = mistakes({"sources": {"edge": {"basic_auth": {"username": "a", "pasword": secret}}}})
        assert "sources.edge.basic_auth.pasword = <" in message
        assert "hunter2" not in message
