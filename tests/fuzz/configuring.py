"""What `tas configure` does with the files in YAML that it reads, whatever is in them.

Each function has a file, in which may be anything. The version of the scheduler follows from the size of the file,
where the file itself does not have it: all forms of the configuration have their turn, and a finding can be repeated.
"""

import json
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from cli.configure.planning import _by_hand_if_refused, template_of, text_of
from tas.configuring.editing import rendered
from tas.configuring.plan import Options, configuration, current_config, for_kubeadm, plan
from tests.unit.tas.configuring.corpus import CASES, FORMS, GROUP
from tests.unit.tas.configuring.samples import KUBEADM, gpu, options, telemetry
from workers.process.manifests import read_yaml_tree

MINORS = (19, 22, 27, 36)


def _options(file: Path, **more: object) -> Options:
    return options(telemetry(), gpu(), minor=MINORS[file.stat().st_size % len(MINORS)], **more)


def plan_of_manifest(file: Path) -> object:
    """The manifest of the scheduler as `-m` names it."""
    text, chosen = text_of(file), options(telemetry(), gpu())
    with _by_hand_if_refused(text, chosen):
        current_config(text, read_yaml_tree)
        made = configuration(text, None, chosen, read_yaml_tree)
        return plan(text, made, {}, chosen, read_yaml_tree)


def plan_of_configuration(file: Path) -> object:
    """The configuration that the scheduler reads until now."""
    text, chosen = text_of(file), _options(file)
    with _by_hand_if_refused(KUBEADM, chosen):
        return configuration(KUBEADM, text, chosen, read_yaml_tree)


def plan_of_template(file: Path) -> object:
    """The file of `-f`, for a scheduler without a configuration, and for one that has its own."""
    given = template_of(file)
    chosen = _options(file, template=given.text)
    made = configuration(KUBEADM, None, chosen, read_yaml_tree)
    return configuration(KUBEADM, made.text, chosen, read_yaml_tree)


def files_for_kubeadm(file: Path) -> object:
    """The file of `--cluster-configuration`."""
    return for_kubeadm(text_of(file), "/k/patches", _options(file), read_yaml_tree)


def _configurations() -> Sequence[bytes]:
    """Configurations that use most fields, each in one form: `make test` tries all seeds."""
    names = ("entry", "two profiles", "election", "least", "spread", "affinity", "ratio", "plugin instead", "arguments")
    heads = (
        {"apiVersion": f"{GROUP}/{form}", "kind": "KubeSchedulerConfiguration"}
        for form in sorted({form for forms in FORMS.values() for form in forms})
    )
    return tuple(rendered(head | CASES[name]).encode() for head, name in zip(cycle(heads), names, strict=False))


_POLICY = {
    "kind": "Policy",
    "apiVersion": "v1",
    "hardPodAffinitySymmetricWeight": 10,
    "extenders": [
        {
            "urlPrefix": "https://tas-service.default.svc.cluster.local:9001",
            "apiVersion": "v1",
            "prioritizeVerb": "scheduler/prioritize",
            "filterVerb": "scheduler/filter",
            "preemptVerb": "",
            "weight": 1,
            "enableHttps": True,
            "httpTimeout": 1500000000,
            "managedResources": [{"name": "telemetry/scheduling", "ignoredByScheduler": True}],
            "tlsConfig": {"insecure": False, "certFile": "/host/certs/client.crt"},
        }
    ],
}
_CONFIG_MAP = {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"policy.cfg": json.dumps(_POLICY, indent=1)}}
CONFIGURATIONS = _configurations()
MANIFESTS = (
    KUBEADM.encode(),
    KUBEADM.replace("- --leader-elect=true", "- --policy-configmap=x\n    - --algorithm-provider=y").encode(),
    KUBEADM.replace("name: kubeconfig", "name: certdir")
    .replace("mountPath: /etc/kubernetes/scheduler.conf", "mountPath: /host/certs")
    .encode(),
)
TEMPLATES = (*(rendered(each).encode() for each in (_POLICY, _CONFIG_MAP)), *CONFIGURATIONS[-3:])
CLUSTERS = tuple(
    (
        f"apiVersion: kubeadm.k8s.io/{form}\nkind: ClusterConfiguration # mine\nscheduler:\n"
        f"  extraArgs: {arguments}\n  extraVolumes:\n  - name: mine\n    hostPath: /m\n    mountPath: /m\n"
        "    readOnly: true\n"
    ).encode()
    for form, arguments in (("v1beta3", "{v: '2', config: /old}"), ("v1beta4", "[{name: v, value: '2'}]"))
)
