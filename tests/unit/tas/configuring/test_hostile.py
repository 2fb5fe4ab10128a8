"""Odd manifests: each is edited so that all else stays, or is refused with the place and the reason."""

import pytest

from tas.configuring.plan import Plan, configuration, plan
from tas.configuring.static_pod import CERTIFICATES_VOLUME, CONFIG_VOLUME, DIGEST
from tas.errors import InvalidInputError
from tests.unit.tas.configuring.hostile import EDITED, REFUSED
from tests.unit.tas.configuring.samples import DEST, manifest, options
from workers.process.manifests import ManifestError, read_yaml_tree


def planned(text: str, config: str | None = None) -> Plan:
    made = configuration(text, config, options(), read_yaml_tree)
    return plan(text, made, {}, options(), read_yaml_tree)


def bare(text: str) -> object:
    """The value of a manifest without what `tas configure` adds."""
    pod = read_yaml_tree(text).value
    assert isinstance(pod, dict)
    pod["metadata"].get("annotations", {}).pop(DIGEST, None)
    pod["metadata"] = {name: value for name, value in pod["metadata"].items() if value != {}}
    pod["spec"].pop("dnsPolicy", None)
    (container,) = pod["spec"]["containers"]
    for parent, name in ((pod["spec"], "volumes"), (container, "volumeMounts")):
        parent[name] = [each for each in parent[name] if each["name"] not in (CONFIG_VOLUME, CERTIFICATES_VOLUME)]
    for name in ("command", "args"):
        container[name] = [word for word in container.get(name, ()) if word != f"--config={DEST}"]
    return pod


@pytest.mark.parametrize("name", EDITED)
def test_an_odd_manifest_keeps_all_that_is_not_ours(name: str) -> None:
    text = EDITED[name]
    made = planned(text)
    assert bare(made.manifest) == bare(text)
    (container,) = read_yaml_tree(made.manifest).value["spec"]["containers"]  # type: ignore[index]
    assert (container.get("args") or container["command"])[-1] == f"--config={DEST}"
    second = planned(made.manifest, made.config)
    assert (second.manifest, second.changes) == (made.manifest, ())
    assert made.manifest.startswith(text[:40])  # also the byte order mark
    if name == "line ends of Windows":
        assert made.manifest.count("\n") == made.manifest.count("\r\n")


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_edited_is_refused_with_the_reason(name: str) -> None:
    text, words = REFUSED[name]
    with pytest.raises((InvalidInputError, ManifestError)) as caught:
        planned(text)
    assert words in str(caught.value)


def test_the_scheduler_reads_an_underscore_in_the_name_of_a_flag_as_a_dash() -> None:
    made = planned(manifest("--policy_configmap=x", "--feature_gates=A=true"))
    assert "policy_configmap" not in made.manifest
    assert "--feature_gates=A=true" in made.manifest
    assert made.notices == (
        "--policy_configmap=x is removed: it has no effect beside a configuration, or does not exist",
    )
