"""Sources on the command line."""

import pytest

from tas.values.names import is_source_name
from workers.samples.source_spec import SourceKind, SourceSpec, parse_sources


def test_each_kind_is_parsed() -> None:
    text = "custom-metrics,metrics-server,prometheus=https://p:9090/x,remote-write=127.0.0.1:9090"
    assert parse_sources(text) == (
        SourceSpec(name="custom-metrics", kind=SourceKind.CUSTOM_METRICS),
        SourceSpec(name="metrics-server", kind=SourceKind.METRICS_SERVER),
        SourceSpec(name="prometheus", kind=SourceKind.PROMETHEUS, address="https://p:9090/x"),
        SourceSpec(name="remote-write", kind=SourceKind.REMOTE_WRITE, address="127.0.0.1:9090"),
    )


def test_several_of_a_kind_get_different_names() -> None:
    specs = parse_sources("prometheus=http://a, prometheus=http://b,edge:prometheus=http://c,prometheus=http://d")
    assert [spec.name for spec in specs] == ["prometheus", "prometheus-2", "edge", "prometheus-3"]
    assert all(is_source_name(spec.name) for spec in specs)


@pytest.mark.parametrize(
    "text", ["custom-metrics", "edge:prometheus=http://c:1", "prometheus=http://[::1]:9090", "remote-write=:9090"]
)
def test_a_source_is_printed_as_it_was_written(text: str) -> None:
    (spec,) = parse_sources(text)
    assert str(spec) == text


def test_a_password_is_never_printed() -> None:
    (spec,) = parse_sources("edge:prometheus=http://tas:hunter2@p:9090/x")
    assert spec.address == "http://tas:hunter2@p:9090/x"
    assert str(spec) == "edge:prometheus=http://p:9090/x"
    for text in ("prometheus=htp://tas:hunter2@p", "x=http://tas:hunter2@p", "prometheus=http://tas:hunter2@p:x"):
        with pytest.raises(ValueError, match=r"must|needs") as caught:
            parse_sources(text)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be one of custom-metrics, metrics-server, prometheus, remote-write"),
        ("custom-metrics,", "must be one of"),
        ("influx", "must be one of"),
        ("custom-metrics=http://a", "takes no address"),
        ("metrics-server=", "takes no address"),
        ("prometheus", "needs a URL"),
        ("prometheus=", "needs a URL"),
        ("prometheus=a:9090", "needs a URL"),
        ("prometheus=http://", "needs a URL"),
        ("prometheus=http://a:x", "needs a URL"),
        ("prometheus=http://a%3Ab:c@d", "needs a URL"),
        ("remote-write", "needs an address to listen on"),
        ("remote-write=9090", "needs an address to listen on"),
        ("Edge:custom-metrics", "of a-z, 0-9 and -"),
        (":custom-metrics", "of a-z, 0-9 and -"),
        ("prometheus=http://a,prometheus=http://a", "is given twice"),
        ("a:metrics-server,b:metrics-server", "is given twice"),
        ("a:prometheus=http://a,a:prometheus=http://b", "two sources are called a"),
        ("prometheus-2:prometheus=http://a,prometheus=http://b,prometheus=http://c", "two sources are called prom"),
        ("prometheus:custom-metrics,prometheus=http://b", "two sources are called prometheus"),
    ],
)
def test_an_invalid_source_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="^.*" + reason.replace("-", "[-]")):
        parse_sources(text)
