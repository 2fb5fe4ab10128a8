"""From a manifest and a configuration to those that ask the extenders: the cases K of facts.md."""

from collections.abc import Callable
from dataclasses import replace
from difflib import unified_diff
from typing import Any

import pytest

from tas.configuring.editing import rendered
from tas.configuring.plan import TEXT, Options, Plan, check_paths, configuration, current_config, lines_by_hand, plan
from tas.configuring.policy_configmap import policy_config_map
from tas.configuring.static_pod import CERTIFICATES_VOLUME, DIGEST, Scheduler, Wanted
from tas.configuring.versions import api_version, minor_of_image, minor_of_version, reads
from tas.errors import InvalidInputError
from tests.unit.growth import grows_linearly
from tests.unit.tas.configuring.samples import DEST, KUBEADM, gpu, manifest, options, telemetry
from workers.process.manifests import ManifestError, read_yaml_tree

V1 = "kubescheduler.config.k8s.io/v1"
HEAD = f"kind: KubeSchedulerConfiguration\napiVersion: {V1}\n"


def value_of(text: str) -> Any:
    return read_yaml_tree(text).value


def planned(text: str, config: str | None = None, chosen: Options | None = None) -> Plan:
    chosen = chosen or options()
    return plan(text, configuration(text, config, chosen, read_yaml_tree), {}, chosen, read_yaml_tree)


def container(made: Plan) -> Any:
    return value_of(made.manifest)["spec"]["containers"][0]


def refused(text: str, config: str | None = None, chosen: Options | None = None) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        planned(text, config, chosen)
    return caught.value


class TestVersions:
    @pytest.mark.parametrize(
        ("minor", "version"),
        [(19, "v1beta1"), (21, "v1beta1"), (22, "v1beta2"), (23, "v1beta2"), (24, "v1beta2"), (25, "v1"), (34, "v1")],
    )
    def test_facts_K2_K3_K4_the_form_for_a_minor_version(self, minor: int, version: str) -> None:
        assert api_version(minor) == f"kubescheduler.config.k8s.io/{version}"
        assert reads(minor, api_version(minor))

    def test_facts_K1_an_old_version_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match=r"at least 1\.19"):
            api_version(18)

    @pytest.mark.parametrize(
        ("image", "minor"),
        [
            ("registry.k8s.io/kube-scheduler:v1.28.3", 28),
            ("localhost:5000/kube-scheduler:v1.24.7", 24),
            ("r/ks:v1.29.0-eks-1-29-4", 29),
            (f"r/ks:v1.28.3@sha256:{'0' * 64}", 28),
            ("r/ks:v1.28", 28),
            ("r/ks:v1.28.x", 28),
            ("r/ks:1.28.3", 28),
        ],
    )
    def test_facts_K6_the_minor_version_of_an_image(self, image: str, minor: int) -> None:
        assert minor_of_image(image) == minor

    @pytest.mark.parametrize(
        "image", ["bad version", "", "x:v10.20.30", "r/ks:v1", f"r/ks@sha256:{'1' * 64}", "h:1.5/ks", "r/ks:latest"]
    )
    def test_facts_K5_an_image_without_a_version_is_refused(self, image: str) -> None:
        with pytest.raises(InvalidInputError, match="version"):
            minor_of_image(image)

    def test_the_flag_has_a_version(self) -> None:
        assert [minor_of_version(text) for text in ("1.28", "v1.28.3", "1.28.x")] == [28] * 3
        for text in ("28", "2.1", "1.x", ""):
            with pytest.raises(InvalidInputError):
                minor_of_version(text)


class TestCommand:
    def test_facts_K7_K8_a_former_configuration_is_replaced_and_last(self) -> None:
        chosen = options(config="foobar")
        for argument in ("--config=foobar", "-config=foobar"):
            words = container(planned(manifest(argument), chosen=chosen))["command"]
            assert [word for word in words if "config=f" in word] == ["--config=foobar"]
            assert words[-1] == "--config=foobar"

    def test_facts_K9_the_flags_of_a_policy_are_removed(self) -> None:
        made = planned(
            manifest(
                "--policy-configmap=x", "--policy-configmap-namespace", "kube-system", "--use-legacy-policy-config"
            )
        )
        words = container(made)["command"]
        assert not [word for word in words if "policy" in word or word == "kube-system"]
        assert "--leader-elect=true" in words
        assert len(made.notices) == 3

    def test_facts_K10_flags_with_a_common_beginning_stay(self) -> None:
        words = container(planned(manifest("--configuration=x", "--config-extra=y")))["command"]
        assert {"--configuration=x", "--config-extra=y"} <= set(words)

    def test_facts_K11_flags_in_args(self) -> None:
        text = "kind: Pod\nspec: {containers: [{name: kube-scheduler, args: [--leader-elect], image: 'r:v1.30.0'}]}\n"
        made = container(planned(text))
        assert made["args"] == ["--leader-elect", f"--config={DEST}"]
        assert "command" not in made

    def test_command_and_args_are_one_list(self) -> None:
        """The hard case: a flag in `command` whose value is in `args`, and the flag to replace in `command`."""
        text = (
            "kind: Pod\nspec: {containers: [{image: 'r:v1.30.0', command: [kube-scheduler, --config=/old, --config], "
            "args: [/older, --v=2]}]}\n"
        )
        made = planned(text)
        assert container(made)["command"] == ["kube-scheduler"]
        assert container(made)["args"] == ["--v=2", f"--config={DEST}"]
        assert made.notices == ("/older stays, and the scheduler no longer reads it",)

    def test_facts_K12_a_number_in_the_command_is_refused_with_its_place(self) -> None:
        error = refused(manifest("5"))
        assert (error.field, error.value) == ("spec.containers[0].command[1]", "5")

    def test_facts_K13_a_flag_without_a_value_takes_the_next_item(self) -> None:
        made = planned(manifest("--config", "--v=2"))
        assert "--v=2" not in container(made)["command"]
        assert any("--v=2" in notice for notice in made.notices)

    def test_facts_K35_percent_signs_are_no_formats(self) -> None:
        assert '"--x=%d"' in planned(manifest('"--x=%d"')).manifest

    @pytest.mark.parametrize(("minor", "stays"), [(21, True), (22, False), (28, False)])
    def test_a_removed_flag_goes_only_where_it_was_removed(self, minor: int, *, stays: bool) -> None:
        words = container(planned(manifest("--algorithm-provider=X", image=f"r/ks:v1.{minor}.0")))["command"]
        assert ("--algorithm-provider=X" in words) is stays

    def test_the_scheduler_is_found_beside_a_sidecar(self) -> None:
        text = manifest().replace("  - command:", "  - {name: log, image: 'l:2'}\n  - command:")
        made = value_of(planned(text).manifest)["spec"]["containers"]
        assert made[0] == {"name": "log", "image": "l:2"}
        assert made[1]["command"][-1] == f"--config={DEST}"

    @pytest.mark.parametrize(
        "text",
        [
            "kind: Pod\n",
            "kind: Service\nspec: {}\n",
            "kind: Pod\nspec: {containers: [{name: etcd, command: [etcd]}]}\n",
            "kind: Pod\nspec: {containers: {}}\n",
            "[1, 2]\n",
            "kind: Pod\nspec: {containers: [{name: kube-scheduler, image: 'a:v1.30.0'}]}\n",
            'kind: Pod\nspec: {containers: [{name: kube-scheduler, command: [sh, -c, "kube-scheduler --v=2"]}]}\n',
            "kind: Pod\nspec: {containers: [{name: kube-scheduler, command: [kube-scheduler], image: 5}]}\n",
        ],
    )
    def test_what_is_no_scheduler_is_refused(self, text: str) -> None:
        assert refused(text).subject == "manifest"

    @pytest.mark.parametrize("text", ["a: [", "kind: Pod\nkind: Pod\n", "", "a: 1\n---\nb: 2\n", "\x00"])
    def test_what_is_no_document_is_refused(self, text: str) -> None:
        with pytest.raises(ManifestError):
            planned(text)


class TestVolumes:
    def test_facts_K14_two_mounts_and_two_volumes_with_types(self) -> None:
        made = planned(manifest())
        assert container(made)["volumeMounts"] == [
            {"name": "tas-scheduler-config", "mountPath": DEST, "readOnly": True},
            {"name": "tas-certs", "mountPath": "/host/certs", "readOnly": True},
        ]
        spec = value_of(made.manifest)["spec"]
        assert spec["volumes"] == [
            {"name": "tas-scheduler-config", "hostPath": {"path": DEST, "type": "File"}},
            {"name": "tas-certs", "hostPath": {"path": "/etc/certs/", "type": "Directory"}},
        ]
        assert spec["dnsPolicy"] == "ClusterFirstWithHostNet"

    def test_facts_K18_an_item_without_a_name_is_refused(self) -> None:
        more = "    volumeMounts: [{name: kubeconfig, mountPath: /k}, {mountPath: /x}]\n"
        assert refused(manifest(more=more)).field == "spec.containers[0].volumeMounts[1].name"

    def test_facts_K18_a_volume_with_the_name_of_the_originals_stays_if_it_is_not(self) -> None:
        more = "    volumeMounts: [{name: certdir, mountPath: /old}]\n"
        volumes = "  volumes: [{name: certdir, hostPath: {path: /old}}]\n"
        made = planned(manifest(more=more, volumes=volumes))
        assert container(made)["volumeMounts"][0] == {"name": "certdir", "mountPath": "/old"}
        assert value_of(made.manifest)["spec"]["volumes"][0]["hostPath"]["path"] == "/old"

    @pytest.mark.parametrize("empty", ["null", "", "[]"])
    def test_facts_K19_null_is_empty(self, empty: str) -> None:
        made = planned(manifest(more=f"    volumeMounts: {empty}\n", volumes=f"  volumes: {empty}\n"))
        assert len(container(made)["volumeMounts"]) == len(value_of(made.manifest)["spec"]["volumes"]) == 2

    @pytest.mark.parametrize("wrong", ["x", "{}", "[1]"])
    def test_facts_K20_a_wrong_type_is_refused(self, wrong: str) -> None:
        assert refused(manifest(volumes=f"  volumes: {wrong}\n")).field.startswith("spec.volumes")

    def test_facts_K21_the_originals_pair_is_replaced(self) -> None:
        more = (
            f"    volumeMounts:\n    - {{name: schedulerconfig, mountPath: {DEST}, readOnly: true}}\n"
            "    - {name: certdir, mountPath: /host/certs, readOnly: true}\n"
        )
        volumes = (
            f"  volumes:\n  - {{name: schedulerconfig, hostPath: {{path: {DEST}}}}}\n"
            "  - {name: certdir, hostPath: {path: /old}}\n"
        )
        made = planned(manifest(f"--config={DEST}", more=more, volumes=volumes), chosen=options(certificates="/n"))
        spec = value_of(made.manifest)["spec"]
        assert [(each["name"], each["hostPath"]["path"]) for each in spec["volumes"]] == [
            ("tas-scheduler-config", DEST),
            ("tas-certs", "/n"),
        ]
        assert [each["name"] for each in container(made)["volumeMounts"]] == ["tas-scheduler-config", "tas-certs"]

    def test_the_originals_volume_stays_if_another_container_mounts_it(self) -> None:
        mounts = "[{name: certdir, mountPath: /host/certs}]"
        volumes = (
            "  volumes: [{name: certdir, hostPath: {path: /etc/certs}}]\n"
            f"  initContainers: [{{name: i, volumeMounts: {mounts}}}]\n"
        )
        made = planned(manifest(more=f"    volumeMounts: {mounts}\n", volumes=volumes))
        spec = value_of(made.manifest)["spec"]
        assert {"name": "certdir", "hostPath": {"path": "/etc/certs"}} in spec["volumes"]
        assert [each["name"] for each in container(made)["volumeMounts"]] == ["certdir", "tas-scheduler-config"]

    def test_a_place_that_another_volume_takes_is_refused(self) -> None:
        more = "    volumeMounts: [{name: mine, mountPath: /host/certs/}]\n"
        volumes = "  volumes: [{name: mine, emptyDir: {}}]\n"
        error = refused(manifest(more=more, volumes=volumes))
        assert "mine" in error.reason

    def test_a_mount_that_would_hide_our_certificates_is_refused(self) -> None:
        """The Cluster API guide of the original mounts the key of the cluster's authority there."""
        more = "    volumeMounts: [{name: cacert, mountPath: /host/certs/client.key}]\n"
        volumes = "  volumes: [{name: cacert, hostPath: {path: /etc/kubernetes/pki/ca.key}}]\n"
        error = refused(manifest(more=more, volumes=volumes))
        assert (error.field, error.value) == ("spec.containers[0].volumeMounts", "'/host/certs/client.key'")
        assert "hides ours" in error.reason

    def test_a_mount_that_hides_a_certificate_in_a_folder_that_is_mounted_already_is_refused(self) -> None:
        more = "    volumeMounts: [{name: c, mountPath: /host/certs}, {name: d, mountPath: /host/./certs/client.crt}]\n"
        volumes = "  volumes: [{name: c, hostPath: {path: /n}}, {name: d, hostPath: {path: /other.crt}}]\n"
        chosen = options(certificates="/n")
        assert "hides ours" in refused(manifest(more=more, volumes=volumes), chosen=chosen).reason

    def test_a_read_only_mount_in_which_ours_cannot_be_mounted_is_refused(self) -> None:
        """facts.md c76"""
        more = "    volumeMounts: [{name: mine, mountPath: /host, readOnly: true}]\n"
        error = refused(manifest(more=more, volumes="  volumes: [{name: mine, hostPath: {path: /x}}]\n"))
        assert (error.value, "read-only" in error.reason) == ("'/host'", True)
        made = planned(
            manifest(more=more, volumes="  volumes: [{name: mine, hostPath: {path: /x}}]\n"),
            chosen=options(certificates="/x/certs"),
        )
        assert [each["name"] for each in container(made)["volumeMounts"]] == [
            "mine",
            "tas-scheduler-config",
            "tas-certs",
        ]

    def test_a_configuration_that_is_mounted_already_is_not_mounted_twice(self) -> None:
        more = f"    volumeMounts: [{{name: mine, mountPath: {DEST}}}]\n"
        volumes = f"  volumes: [{{name: mine, hostPath: {{path: {DEST}}}}}]\n"
        made = planned(manifest(more=more, volumes=volumes))
        assert [each["name"] for each in container(made)["volumeMounts"]] == ["mine", "tas-certs"]


class TestManifest:
    def test_facts_K38_only_these_lines_of_a_kubeadm_manifest_change(self) -> None:
        """The hard case: comments, flow style and odd spaces in the manifest."""
        made = planned(KUBEADM, chosen=options(config="/etc/kubernetes/scheduler-config.yaml"))
        lines = list(unified_diff(KUBEADM.splitlines(), made.manifest.splitlines(), n=0, lineterm=""))[2:]
        assert not [line for line in lines if line.startswith("-")]
        assert [line[1:].strip() for line in lines if line.startswith("+")] == [
            "annotations:",
            f"{DIGEST}: {value_of(made.manifest)['metadata']['annotations'][DIGEST]}",
            "- --config=/etc/kubernetes/scheduler-config.yaml",
            "- name: tas-scheduler-config",
            "mountPath: /etc/kubernetes/scheduler-config.yaml",
            "readOnly: true",
            "- name: tas-certs",
            "mountPath: /host/certs",
            "readOnly: true",
            "- name: tas-scheduler-config",
            "hostPath:",
            "path: /etc/kubernetes/scheduler-config.yaml",
            "type: File",
            "- name: tas-certs",
            "hostPath:",
            "path: /etc/certs/",
            "type: Directory",
            "dnsPolicy: ClusterFirstWithHostNet",
        ]

    @pytest.mark.parametrize("text", [KUBEADM, manifest()])
    def test_facts_K17_a_second_run_changes_nothing(self, text: str) -> None:
        first = planned(text)
        second = planned(first.manifest, first.config)
        assert (second.manifest, second.config) == (first.manifest, first.config)
        assert first.changes
        assert second.changes == second.notices == ()

    def test_the_folder_of_the_certificates_is_the_same_without_the_slash_at_its_end(self) -> None:
        """As `tas configure kubeadm` writes it: so `verify` finds no difference in what kubeadm then writes."""
        first = planned(KUBEADM, None, options(certificates="/etc/certs"))
        second = planned(first.manifest, first.config, options(certificates="/etc/certs/"))
        assert (second.manifest, second.changes) == (first.manifest, ())

    @pytest.mark.parametrize(
        ("argument", "files"),
        [("--v=2", False), ("--tls-cert-file=/x", True), ("--cert-dir=/x", True), ("--cert-directory=/x", False)],
    )
    def test_a_certificate_of_a_file_is_the_same_after_a_restart(self, argument: str, *, files: bool) -> None:
        assert planned(manifest(argument)).serves_with_files is files

    def test_facts_K33_a_change_of_the_configuration_alone_restarts_the_scheduler(self) -> None:
        first = planned(KUBEADM)
        second = planned(first.manifest, first.config, options(telemetry(weight=20)))
        assert second.config != first.config
        assert second.changes == (f"annotation {DIGEST}",)

    def test_new_certificates_restart_the_scheduler(self) -> None:
        made = configuration(KUBEADM, None, options(), read_yaml_tree)
        texts = [
            plan(KUBEADM, made, {"client.crt": content}, options(), read_yaml_tree).manifest for content in (b"1", b"2")
        ]
        assert texts[0] != texts[1]

    @pytest.mark.parametrize("url", ["http://127.0.0.1:9001", "http://localhost:9001", "http://[::1]:9001"])
    def test_an_extender_on_this_machine_needs_neither_cluster_dns_nor_certificates(self, url: str) -> None:
        made = planned(manifest(), chosen=options(telemetry(url=url)))
        assert "dnsPolicy" not in value_of(made.manifest)["spec"]
        assert [each["name"] for each in container(made)["volumeMounts"]] == ["tas-scheduler-config"]
        (entry,) = value_of(made.config)["extenders"]
        assert entry["enableHTTPS"] is False
        assert "tlsConfig" not in entry


class TestVolumesOfOthers:
    """Volumes with the names of ours: made by us, or by somebody else."""

    @pytest.mark.parametrize(
        ("volume", "mount"),
        [
            ("{name: tas-certs, secret: {secretName: s}}", "{name: tas-certs, mountPath: /host/certs}"),
            ("{name: tas-certs, hostPath: {path: /mine}}", "{name: tas-certs, mountPath: /mine}"),
            (
                "{name: tas-scheduler-config, hostPath: {path: /mine}}",
                "{name: tas-scheduler-config, mountPath: /there}",
            ),
            ("{name: tas-scheduler-config, emptyDir: {}}", "{name: tas-scheduler-config, mountPath: /mine}"),
        ],
    )
    def test_are_refused_and_not_replaced(self, volume: str, mount: str) -> None:
        text = manifest(more=f"    volumeMounts: [{mount}]\n", volumes=f"  volumes: [{volume}]\n")
        error = refused(text)
        assert (error.field, error.value) == ("spec.volumes", repr(volume.partition(": ")[2].partition(",")[0]))
        assert "rename it" in error.reason

    def test_that_another_container_mounts_are_refused(self) -> None:
        text = planned(KUBEADM).manifest
        other = "  - name: other\n    volumeMounts: [{name: tas-certs, mountPath: /c}]\n"
        error = refused(text.replace("  hostNetwork:", f"{other}  hostNetwork:"))
        assert (error.field, error.value) == ("spec.volumes", "'tas-certs'")


class TestConfiguration:
    def test_a_new_configuration_has_the_credentials_of_the_command(self) -> None:
        made = planned(KUBEADM)
        document = value_of(made.config)
        assert document["apiVersion"] == V1
        assert document["clientConnection"] == {"kubeconfig": "/etc/kubernetes/own.conf"}

    def test_the_entry_of_telemetry(self) -> None:
        (entry,) = value_of(planned(KUBEADM).config)["extenders"]
        assert entry == {
            "urlPrefix": "https://tas-service.telemetry-aware-scheduling.svc.cluster.local:9001/scheduler",
            "filterVerb": "filter",
            "prioritizeVerb": "prioritize",
            "preemptVerb": "preempt",
            "weight": 5,
            "enableHTTPS": True,
            "nodeCacheCapable": True,
            "httpTimeout": "1s",
            "ignorable": True,
            "managedResources": [{"name": "telemetry/scheduling", "ignoredByScheduler": True}],
            "tlsConfig": {
                "insecure": False,
                "certFile": "/host/certs/client.crt",
                "keyFile": "/host/certs/client.key",
                "caFile": "/host/certs/ca.crt",
            },
        }

    def test_facts_K32_both_extenders_with_the_namespace_of_each(self) -> None:
        first, second = value_of(planned(KUBEADM, chosen=options(telemetry(), gpu())).config)["extenders"]
        assert ".telemetry-aware-scheduling." in first["urlPrefix"]
        assert second["urlPrefix"] == "https://gas-service.default.svc.cluster.local:9001/scheduler"
        verbs = {verb: second[verb] for verb in second if verb.endswith("Verb")}
        assert verbs == {"filterVerb": "filter", "prioritizeVerb": "prioritize", "bindVerb": "bind"}
        assert [(each["ignorable"], each["httpTimeout"]) for each in (first, second)] == [(True, "1s"), (False, "5s")]
        assert second["nodeCacheCapable"] is True
        assert second["weight"] >= 1
        assert [(each["name"], each["ignoredByScheduler"]) for each in second["managedResources"]] == [
            ("gpu.intel.com/i915", False),
            ("gpu.intel.com/xe", False),
        ]

    OTHER = "- urlPrefix: http://other # theirs\n  filterVerb: f\n"

    def test_facts_K29_profiles_and_other_extenders_stay_and_ours_is_added_once(self) -> None:
        config = f"# ours\n{HEAD}profiles:\n- schedulerName: p1\nextenders:\n{self.OTHER}"
        made = planned(KUBEADM, config)
        again = planned(KUBEADM, made.config)
        assert made.config.startswith(config)
        assert again.config == made.config
        assert value_of(made.config)["extenders"][0]["urlPrefix"] == "http://other"
        assert len(value_of(made.config)["extenders"]) == 2

    @pytest.mark.parametrize("ignorable", [True, False])
    def test_what_the_operator_says_is_for_both_extenders(self, ignorable: bool) -> None:
        chosen = options(*(each(ignorable=ignorable, http_timeout="7s") for each in (telemetry, gpu)))
        entries = value_of(planned(KUBEADM, chosen=chosen).config)["extenders"]
        assert [(each["ignorable"], each["httpTimeout"]) for each in entries] == [(ignorable, "7s")] * 2

    def test_facts_K30_a_second_binder_is_refused(self) -> None:
        config = f"{HEAD}extenders: [{{urlPrefix: http://o, bindVerb: b}}]\n"
        error = refused(KUBEADM, config, options(gpu()))
        assert error.field == "extenders[1].bindVerb"
        assert "extenders[0]" in error.reason

    def test_facts_K31_our_entry_is_updated_in_place(self) -> None:
        config = (
            f"{HEAD}extenders:\n"
            "- urlPrefix: https://tas-service.default.svc.cluster.local:9001\n  weight: 1 # too small\n"
            "  filterVerb: scheduler/filter\n  prioritizeVerb: scheduler/prioritize\n  enableHTTPS: true\n"
            "  managedResources:\n  - {name: telemetry/scheduling, ignoredByScheduler: true}\n"
            f"{self.OTHER}"
        )
        made = planned(KUBEADM, config)
        first, other = value_of(made.config)["extenders"]
        assert first == telemetry().entry()
        assert other["urlPrefix"] == "http://other"
        assert "weight: 5 # too small" in made.config
        assert self.OTHER in made.config

    TEMPLATE = (
        f"{HEAD}profiles:\n- schedulerName: p2\nextenders:\n- urlPrefix: https://tas.example:9001\n"
        "  filterVerb: filter\n  enableHTTPS: true\n  tlsConfig: {certFile: /host/certs/client.crt}\n"
    )

    def test_the_extenders_of_a_template_join_the_configuration_that_exists(self) -> None:
        """The hard case: the certificates and the DNS that only an entry of the template needs."""
        chosen = replace(options(), extenders=(), template=self.TEMPLATE)
        made = planned(KUBEADM, f"{HEAD}profiles:\n- schedulerName: p1\nextenders:\n{self.OTHER}", chosen)
        document = value_of(made.config)
        assert [each["urlPrefix"] for each in document["extenders"]] == ["http://other", "https://tas.example:9001"]
        assert document["profiles"] == [{"schedulerName": "p1"}]
        assert made.urls == ("https://tas.example:9001",)
        assert "tas-certs" in [each["name"] for each in container(made)["volumeMounts"]]
        assert value_of(made.manifest)["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
        assert "not profiles" in made.notices[0]

    def test_without_a_configuration_the_template_is_the_configuration(self) -> None:
        chosen = replace(options(), extenders=(), template=self.TEMPLATE)
        made = planned(KUBEADM, None, chosen)
        assert value_of(made.config)["profiles"] == [{"schedulerName": "p2"}]
        assert "tas-certs" in [each["name"] for each in container(made)["volumeMounts"]]
        assert value_of(made.manifest)["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"

    def test_the_certificates_of_a_former_run_stay_mounted(self) -> None:
        """The hard case: no extender of this run needs certificates, and an entry of the configuration does."""
        first = planned(KUBEADM)
        second = planned(first.manifest, first.config, options(gpu(url="http://127.0.0.1:9002")))
        assert "tas-certs" in [each["name"] for each in container(second)["volumeMounts"]]
        assert value_of(second.manifest)["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"

    @pytest.mark.parametrize(
        ("version", "minor", "after"),
        [
            ("v1beta3", 28, "v1beta3"),
            ("v1beta3", 29, "v1"),
            ("v1beta2", 28, "v1"),
            ("v1", 24, "v1beta2"),
            ("XVERSIONX", 30, "v1"),
        ],
    )
    def test_facts_K26_the_version_is_set_only_where_the_scheduler_does_not_read_it(
        self, version: str, minor: int, after: str
    ) -> None:
        config = f"# XVERSIONX\nkind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/{version}\n"
        made = planned(KUBEADM, config, options(minor=minor))
        assert value_of(made.config)["apiVersion"] == f"kubescheduler.config.k8s.io/{after}"
        assert made.config.startswith("# XVERSIONX\n")
        assert bool(made.notices) is (version != after)

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ("extenders: [{urlPrefix: http://o, prioritizeVerb: p}]", "extenders[0].weight"),
            ("extenders: [{urlPrefix: http://o, enableHttps: true}]", "extenders[0].enableHttps"),
            ("extenders: [{managedResources: [{name: cpu}]}]", "extenders[0].managedResources[0].name"),
            ("extenders: [{managedResources: [{name: kubernetes.io/x}]}]", "extenders[0].managedResources[0].name"),
            ("extenders: [{managedResources: [{name: a.b/c}]}, {managedResources: [{name: a.b/c}]}]",
             "extenders[1].managedResources[0].name"),
            ("extenders: [{urlPrefix: http://o, weight: 99999999999999999999}]", "extenders[0].weight"),
            ("extenders: [{urlPrefix: http://o, weight: many}]", "extenders[0].weight"),
            ("extenders: [{urlPrefix: http://o, weight: .inf}]", "extenders[0].weight"),
            ("extenders: [{urlPrefix: http://o, weight: .nan}]", "extenders[0].weight"),
            ("clientConnection: {qps: 1e999}", "clientConnection.qps"),
            ('extenders: [{urlPrefix: "http://o\\n- forged"}]', "extenders[0].urlPrefix"),
            ('extenders: [{urlPrefix: http://o, filterVerb: "f\\r"}]', "extenders[0].filterVerb"),
            ("extenders: [{urlPrefix: 1}]", "extenders[0].urlPrefix"),
            ("extenders: {}", "extenders"),
            ("extenders: [1]", "extenders[0]"),
            ("healthzBindAddress: 0.0.0.0", "healthzBindAddress"),
            ("clientConnection: []", "clientConnection"),
        ],
    )  # fmt: skip
    def test_facts_c6_c7_c9_what_the_scheduler_refuses_is_refused(self, fields: str, field: str) -> None:
        config = f"{HEAD}{fields}\n"
        assert refused(KUBEADM, config).field == field

    def test_facts_c10_an_extender_without_an_authority_is_reported(self) -> None:
        config = f"{HEAD}extenders: [{{urlPrefix: https://o, enableHTTPS: true}}]\n"
        assert planned(KUBEADM, config).notices == (
            "extenders[0] has no caFile: the scheduler accepts any server there",
        )

    @pytest.mark.parametrize(
        ("minor", "verbs", "reported"),
        [
            (33, "filterVerb: f", True),
            (32, "filterVerb: f", False),
            (33, "prioritizeVerb: p, weight: 1", False),  # only filter sends nodes back
            (33, "filterVerb: f, nodeCacheCapable: true", False),
        ],
    )
    def test_whole_nodes_that_come_back_are_reported(self, minor: int, verbs: str, *, reported: bool) -> None:
        config = f"{HEAD}extenders: [{{urlPrefix: http://o, {verbs}}}]\n"
        scheduler = KUBEADM.replace("v1.28.3", f"v1.{minor}.0")
        assert f"v1.{minor}.0" in scheduler
        assert ("see every node as empty" in " ".join(planned(scheduler, config).notices)) is reported

    @pytest.mark.parametrize(
        "config", ["abc", "[]", "kind: Pod\napiVersion: v1\n", "kind: KubeSchedulerConfiguration\n"]
    )
    def test_facts_K14_what_is_no_configuration_is_refused(self, config: str) -> None:
        assert refused(KUBEADM, config).subject == "scheduler configuration"

    def test_an_alpha_form_is_not_converted(self) -> None:
        config = "kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1alpha1\n"
        assert "converted" in refused(KUBEADM, config).reason

    def test_the_configuration_that_the_scheduler_reads_is_found_on_the_machine(self) -> None:
        more = "    volumeMounts: [{name: c, mountPath: /inside}, {name: d, mountPath: /inside/deep}]\n"
        volumes = "  volumes: [{name: c, hostPath: {path: /outside}}, {name: d, hostPath: {path: /d}}]\n"
        for inside, outside in (("/inside/c.yaml", "/outside/c.yaml"), ("/inside/deep/c.yaml", "/d/c.yaml")):
            text = manifest(f"--config={inside}", more=more, volumes=volumes)
            assert current_config(text, read_yaml_tree) == outside
        assert current_config(manifest(), read_yaml_tree) is None
        with pytest.raises(InvalidInputError, match="give the configuration with -f"):
            current_config(manifest("--config=/elsewhere"), read_yaml_tree)

    @pytest.mark.parametrize(
        ("mount", "outside"),
        [
            ("{name: host, mountPath: /in/a.yaml, subPath: sub/b.yaml}", "/out/sub/b.yaml"),
            ("{name: host, mountPath: /in, subPath: sub}", "/out/sub/a.yaml"),
            ("{name: host, mountPath: /in}, {name: empty, mountPath: /in/a.yaml}", None),
            ("{name: host, mountPath: /}, {name: empty, mountPath: /in}", None),
            ("{name: host, mountPath: /in, subPathExpr: $(NODE)}", None),
        ],
    )
    def test_the_configuration_is_never_taken_from_another_place(self, mount: str, outside: str | None) -> None:
        """Else the settings of the scheduler would be lost without a word."""
        volumes = "  volumes: [{name: host, hostPath: {path: /out}}, {name: empty, emptyDir: {}}]\n"
        text = manifest("--config=/in/a.yaml", more=f"    volumeMounts: [{mount}]\n", volumes=volumes)
        if outside is not None:
            assert current_config(text, read_yaml_tree) == outside
            return
        with pytest.raises(InvalidInputError, match="no hostPath volume has this file: give the configuration with -f"):
            current_config(text, read_yaml_tree)

    @pytest.mark.parametrize(
        ("fields", "notice"),
        [
            ({"bindVerb": "bind", "ignorable": True}, "has ignorable: true beside bindVerb"),
            ({"urlPrefix": "https://tas-service.default.svc:9001"}, "is telemetry-aware-scheduling/tas-service"),
            (
                {"urlPrefix": "https://a:6443/api/v1/namespaces/t/services/https:tas:9001/proxy"},
                "no client certificate",
            ),
        ],
    )
    def test_an_entry_that_cannot_do_what_it_should_is_a_notice(self, fields: dict[str, object], notice: str) -> None:
        document = {"apiVersion": V1, "kind": "KubeSchedulerConfiguration", "extenders": [fields]}
        (found,) = planned(KUBEADM, rendered(document)).notices
        assert found.startswith("extenders[0] has ")
        assert notice in found

    def test_the_weight_of_the_originals_file_is_a_notice(self) -> None:
        resources = [{"name": "telemetry/scheduling", "ignoredByScheduler": True}]
        for weight, is_low in ((1, True), (5, False)):
            entry = {"urlPrefix": "http://a", "prioritizeVerb": "p", "weight": weight, "managedResources": resources}
            document = rendered({"kind": "KubeSchedulerConfiguration", "apiVersion": V1, "extenders": [entry]})
            notices = planned(KUBEADM, chosen=replace(options(), extenders=(), template=document)).notices
            assert any("one step of a score is 10 points" in notice for notice in notices) is is_low

    def test_a_proxy_of_the_api_server_is_no_address_of_an_extender(self) -> None:
        with pytest.raises(InvalidInputError, match="no client certificate passes"):
            telemetry(url="https://a:6443/api/v1/namespaces/t/services/https:tas-service:9001/proxy/scheduler")


class TestPolicy:
    """The Policy of Kubernetes 1.19 to 1.22."""

    def test_the_flags_name_the_config_map(self) -> None:
        made = planned(manifest(image="r/ks:v1.21.0"), chosen=options(policy=True))
        assert container(made)["command"][-2:] == [
            "--policy-configmap=scheduler-extender-policy",
            "--policy-configmap-namespace=kube-system",
        ]
        assert [each["name"] for each in container(made)["volumeMounts"]] == ["tas-certs"]
        again = planned(made.manifest, chosen=options(policy=True))
        assert (again.manifest, again.changes) == (made.manifest, ())

    def test_the_config_map_has_the_legacy_spelling(self) -> None:
        config_map, role, binding = policy_config_map((telemetry(), gpu()), 19)
        assert isinstance(config_map["data"], dict)
        policy = value_of(config_map["data"]["policy.cfg"])
        assert (policy["kind"], policy["apiVersion"]) == ("Policy", "v1")
        first, second = policy["extenders"]
        assert (first["enableHttps"], first["httpTimeout"]) == (True, 1_000_000_000)
        assert "enableHTTPS" not in first
        assert second["bindVerb"] == "bind"
        assert role["kind"], binding["kind"] == ("Role", "RoleBinding")
        assert value_of(rendered(config_map)) == config_map

    @pytest.mark.parametrize("minor", [18, 23, 30])
    def test_another_version_is_refused(self, minor: int) -> None:
        assert refused(manifest(image=f"r/ks:v1.{minor}.0"), chosen=options(policy=True)).field == "--policy-configmap"

    def test_a_configuration_is_refused_beside_it(self) -> None:
        text = manifest("--config=/x", image="r/ks:v1.21.0")
        assert refused(text, chosen=options(policy=True)).field == "--config"


class TestOptions:
    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"certificates": "certs"}, "-cert-dir"),
            ({"config": "cfg.yaml"}, "-d"),
            ({"config": "/m/cfg.yaml"}, "-d"),
            ({"certificates": "/x/../m/"}, "-cert-dir"),
        ],
        ids=["facts_K36", "relative", "facts_K37", "certificates"],
    )
    def test_a_path_that_a_pod_cannot_use_is_refused(self, changes: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidInputError) as caught:
            check_paths(options(**changes), "/m/kube-scheduler.yaml")
        assert caught.value.field == field

    @pytest.mark.parametrize(
        "changes",
        [
            {"url": "ftp://h"},
            {"url": "h:9001"},
            {"url": "http://u@h"},
            {"url": "http://h?q"},
            {"weight": 0},
            {"http_timeout": "0s"},
        ],
    )
    def test_an_extender_that_cannot_be_asked_is_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(InvalidInputError):
            telemetry(**changes)


EXTENDER_FIELDS = {
    "bindVerb", "enableHTTPS", "filterVerb", "httpTimeout", "ignorable", "managedResources", "nodeCacheCapable",
    "preemptVerb", "prioritizeVerb", "tlsConfig", "urlPrefix", "weight",
}  # fmt: skip
TLS_FIELDS = {"caData", "caFile", "certData", "certFile", "insecure", "keyData", "keyFile", "serverName"}
"""The fields of `Extender` and `ExtenderTLSConfig`, the same in v1beta2, v1beta3 and v1: config/*/types.go of the Go
module k8s.io/kube-scheduler v0.27.4, the last minor version with all three."""


def test_entries_have_only_fields_of_the_published_types() -> None:
    for entry in (telemetry().entry(), gpu().entry()):
        assert entry.keys() <= EXTENDER_FIELDS
        assert isinstance(entry["tlsConfig"], dict)
        assert entry["tlsConfig"].keys() <= TLS_FIELDS


@pytest.mark.parametrize(
    ("subject", "field", "helps"),
    [
        ("manifest", "spec.volumes", True),
        ("manifest", TEXT, True),
        ("scheduler configuration", TEXT, True),
        ("scheduler configuration", "extenders[0].weight", False),
        ("manifest", "--config", False),
        ("-f", "kind", False),
    ],
)
def test_lines_by_hand_are_given_where_a_file_cannot_be_edited(subject: str, field: str, helps: bool) -> None:
    error = InvalidInputError(subject, field, "", "x")
    lines = lines_by_hand(error, KUBEADM, options(telemetry()), read_yaml_tree)
    assert (lines is not None) is helps
    unknown = KUBEADM.replace(":v1.28.3", ":latest")
    assert lines_by_hand(error, unknown, options(telemetry()), read_yaml_tree) is None
    assert lines_by_hand(error, unknown, options(telemetry(), minor=28), read_yaml_tree) == lines
    assert lines_by_hand(error, KUBEADM, options(telemetry(), policy=True), read_yaml_tree) is None


@pytest.mark.parametrize(
    ("argument", "volumes", "is_needed"),
    [
        (f"--config={DEST}", f"  volumes: [{{name: own, hostPath: {{path: {DEST}}}}}]\n", True),
        ("--config=/d/other.yaml", "  volumes: [{name: own, hostPath: {path: /d/other.yaml}}]\n", False),
        ("--v=2", "", False),
    ],
    ids=["the file that is replaced", "another file", "none"],
)
def test_a_scheduler_that_reads_the_file_already_first_gets_its_mounts(
    argument: str, volumes: str, *, is_needed: bool
) -> None:
    """Else one that starts between the two writes finds certificates in its configuration and not in the pod."""
    mounts = f"    volumeMounts: [{{name: own, mountPath: {argument.partition('=')[2]}}}]\n" if volumes else ""
    made = planned(manifest(argument, more=mounts, volumes=volumes))
    assert (made.interim is not None) is is_needed
    if made.interim is not None:
        assert CERTIFICATES_VOLUME in made.interim
        again = planned(made.interim, made.config)
        assert (again.changes, again.manifest) == ((f"annotation {DIGEST}",), made.manifest)
    second = planned(made.manifest, made.config)
    assert second.interim is None


def test_more_extenders_than_a_scheduler_could_ask_are_refused() -> None:
    """Each is compared with all before, and thousands of them would take hours."""
    text = f"{HEAD}extenders:\n" + "- {}\n" * 201
    for config, chosen in ((text, options()), (None, options(template=text))):
        with pytest.raises(InvalidInputError, match="extenders = '201 entries': must be at most 200"):
            configuration(KUBEADM, config, chosen, read_yaml_tree)


def test_many_volumes_and_mounts_take_linear_time() -> None:
    def prepare(size: int) -> Callable[[], object]:
        named = [{"name": f"v{number}", "mountPath": f"/v{number}"} for number in range(size)]
        program = {"name": "kube-scheduler", "command": ["kube-scheduler"], "volumeMounts": named}
        volumes = [{"name": each["name"], "hostPath": {"path": "/a"}} for each in named]
        pod = {"kind": "Pod", "spec": {"containers": [program], "volumes": volumes}}
        wanted = Wanted(minor=30, config=DEST, certificates="/etc/certs", cluster_dns=False, digest="")
        return lambda: Scheduler(pod).configured(wanted)

    assert grows_linearly(prepare, 4_000)
