"""The configuration of sources beyond their addresses: the series of each metric, and the HTTP settings of servers."""

from collections.abc import Collection, Mapping

import msgspec

from tas.sources.series import REPLICA_LABELS, LabelName, Mappings, MetricMapping
from tas.values.document import DocumentReader
from tas.values.http_config import HttpConfig
from tas.values.names import is_metric_name


class SourceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration; `http` maps the name of a source to its settings."""

    mappings: Mappings = Mappings()
    http: Mapping[str, HttpConfig] = {}


def parse_source_config(origin: str, document: object, *, sources: Collection[str]) -> SourceConfig:
    """The configuration in a document, as decoded from YAML.

    `origin` is the name of the document in errors. `sources` are the names of the running sources that are polled over
    HTTP: only they can have HTTP settings.
    Raises DocumentError with the first mistake of each entry, named by its field.
    """
    reader = DocumentReader(origin)
    fields = reader.known(document, ("metrics", "node_label", "replica_labels", "sources"))
    label, replicas = fields.get("node_label"), fields.get("replica_labels")
    no_source = f"is not a polled source: must be one of {', '.join(sorted(sources))}"
    config = SourceConfig(
        mappings=Mappings(
            metrics=dict(
                reader.entries(
                    "metrics", fields.get("metrics"), MetricMapping, is_metric_name, "must be a metric's name"
                )
            ),
            node_label=None if label is None else reader.converted("node_label", label, LabelName),
            replica_labels=REPLICA_LABELS
            if replicas is None
            else reader.converted("replica_labels", replicas, tuple[LabelName, ...]) or (),
        ),
        http=dict(reader.entries("sources", fields.get("sources"), HttpConfig, sources.__contains__, no_source)),
    )
    reader.finish()
    return config
