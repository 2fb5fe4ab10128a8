"""Valid names of nodes, policies, metrics, sources and labels."""

import re

_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_METRIC = re.compile(r"[a-zA-Z0-9_:-]{1,253}")
_LABEL_NAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?")
_SOURCE = re.compile(r"[a-z0-9-]{1,63}")


def is_subdomain(name: str) -> bool:
    """Whether `name` is a valid name of a node or a policy (RFC 1123 subdomain, at most 253 characters)."""
    return len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None


def is_dns_label(name: str) -> bool:
    """Whether `name` is a valid name of a namespace (RFC 1123 label, at most 63 characters)."""
    return _DNS_LABEL.fullmatch(name) is not None


def is_metric_name(name: str) -> bool:
    """Whether `name` is a valid name of a metric: the CRD's pattern, and `:` for recording rules (facts.md D34)."""
    return _METRIC.fullmatch(name) is not None


def is_source_name(name: str) -> bool:
    """Whether `name` is a valid name of a source of samples."""
    return _SOURCE.fullmatch(name) is not None


def is_label_name(name: str) -> bool:
    """Whether `name` is a valid name in a label key, after the prefix or without one (at most 63 characters)."""
    return _LABEL_NAME.fullmatch(name) is not None


def is_label_key(key: str) -> bool:
    """Whether `key` is a valid label key: a name, after an optional subdomain and `/`."""
    prefix, slash, name = key.rpartition("/")
    return is_label_name(name) and (not slash or is_subdomain(prefix))


def is_label_value(value: str) -> bool:
    """Whether `value` is a valid label value: empty, or like a name."""
    return value == "" or is_label_name(value)
