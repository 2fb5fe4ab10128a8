"""The configuration in docs/notify.md is valid, and the page has every field and every alert."""

import re
from pathlib import Path

import msgspec

from tas.notifying.alerts import PREFIX
from tas.notifying.config import (
    AlertmanagerConfig,
    ChatConfig,
    CloudEventsConfig,
    KubernetesEventsConfig,
    parse_sinks,
)
from tas.notifying.notices import KINDS, notice_of
from tests.unit.tas.events.examples import EXAMPLES
from tests.unit.tas.notifying.making import event
from workers.process.manifests import read_yaml

PAGE = (Path(__file__).parents[2] / "docs" / "notify.md").read_text()
TYPES = (KubernetesEventsConfig, AlertmanagerConfig, CloudEventsConfig, ChatConfig)


def test_the_example_has_each_type_of_sink() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (document,) = read_yaml(text.encode())
    assert {type(sink) for sink in parse_sinks("docs/notify.md", document).values()} == set(TYPES)


def test_every_field_and_every_kind_of_event_is_on_the_page() -> None:
    fields = {field.encode_name for kind in TYPES for field in msgspec.structs.fields(kind)}
    assert {name for name in fields | KINDS if f"`{name}`" not in PAGE} == set()


def test_every_alert_is_on_the_page_with_its_labels() -> None:
    rows = dict(re.findall(rf"^\| `{PREFIX}(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    found = {}
    for data in EXAMPLES:
        notice = notice_of(event(data))
        if notice is not None and notice.begins:
            found[notice.condition] = set(notice.labels)
    assert found == {
        name: set(re.findall(r"\w+", labels.partition(";")[0].partition(" (")[0])) for name, labels in rows.items()
    }
