"""The configurations of sources of Prometheus on the pages have the described effect."""

import re
from pathlib import Path
from typing import Any

from tas.sources.config import parse_source_config
from tas.sources.prometheus import query_of
from tas.sources.series import Aggregate, Mappings
from workers.process.manifests import read_yaml

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "prometheus.md").read_text() + (DOCS / "reference" / "source-config.md").read_text()


def block(words: str) -> Any:
    """The YAML block that holds these words."""
    (found,) = (text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if words in text)
    (document,) = read_yaml(found.encode())
    return document


def test_the_file_of_source_config_is_read() -> None:
    config = parse_source_config("docs/reference/source-config.md", block("basic_auth"), sources={"prometheus", "edge"})
    assert config.mappings.of("cpu_busy").node_label == "instance"
    assert config.mappings.of("other").node_label == "kubernetes_node"
    disk = config.mappings.of("disk_free")
    assert disk.aggregate is Aggregate.MIN
    assert query_of("disk_free", disk) == '{__name__="node_filesystem_avail_bytes",mountpoint="/"}'
    assert set(config.http) == {"prometheus", "edge"}


def test_the_default_query_is_that_of_the_page() -> None:
    assert f"`{query_of('load1', Mappings().of('load1'))}`" in PAGE


def test_the_remote_write_configuration_is_yaml_with_our_path() -> None:
    for words, scheme in (("queue_config", "http"), ("tls_config: {ca_file: /etc", "https")):
        (target,) = block(words)["remote_write"]
        assert target["url"] == f"{scheme}://tas-collect:9090/api/v1/write"
