"""Configurations of kube-scheduler, right and wrong ones, and whether a scheduler of a version starts with each.

`starts.json` has what the real schedulers did. `TAS_WRITE_STARTS=1 pytest tests/e2e/test_scheduler_starts.py` writes
this file.
"""

import json
from collections.abc import Iterator
from pathlib import Path

STARTS = Path(__file__).with_name("starts.json")
GROUP = "kubescheduler.config.k8s.io"
FORMS = {22: ("v1beta1", "v1beta2"), 27: ("v1beta2", "v1beta3", "v1"), 36: ("v1",)}
"""The forms that each of the three schedulers reads."""

Object = dict[str, object]

TLS = {"insecure": False, "serverName": "tas"}
ENTRY = {
    "urlPrefix": "https://tas-service:9001/scheduler",
    "filterVerb": "filter",
    "prioritizeVerb": "prioritize",
    "weight": 5,
    "enableHTTPS": True,
    "managedResources": [{"name": "telemetry/scheduling", "ignoredByScheduler": True}],
    "ignorable": True,
    "httpTimeout": "1s",
    "nodeCacheCapable": True,
    "tlsConfig": TLS,
}


def plugins(**points: object) -> Object:
    """A configuration with one profile with these plugins."""
    return {"profiles": [{"schedulerName": "default-scheduler", "plugins": points}]}


def names(*enabled: str, disabled: tuple[str, ...] = ()) -> Object:
    """A set of plugins."""
    return {"enabled": [{"name": name} for name in enabled], "disabled": [{"name": name} for name in disabled]}


def arguments(plugin: str, args: object) -> Object:
    """A configuration with arguments for a plugin."""
    return {"profiles": [{"pluginConfig": [{"name": plugin, "args": args}]}]}


def election(**fields: object) -> Object:
    """A configuration with fields of the leader election."""
    return {"leaderElection": {"leaderElect": True, **fields}}


def entry(**fields: object) -> Object:
    """A configuration with an extender; None deletes a field."""
    merged = ENTRY | fields
    return {"extenders": [{key: value for key, value in merged.items() if value is not None or key not in fields}]}


def strategy(kind: str, **fields: object) -> Object:
    """Arguments of NodeResourcesFit."""
    return arguments("NodeResourcesFit", {"scoringStrategy": {"type": kind, **fields}})


SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
SHAPE = [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]


def affinity(**requirement: object) -> Object:
    """Arguments of NodeAffinity with one requirement."""
    terms = [{"matchExpressions": [{"key": "kind", **requirement}]}]
    added = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return arguments("NodeAffinity", {"addedAffinity": added})


CASES: dict[str, Object] = {
    "empty": {},
    "entry": entry(),
    "null everywhere": {"profiles": None, "extenders": None, "parallelism": None, "leaderElection": None},
    # Fields
    "metadata": {"metadata": {"name": "x"}},
    "misspelt field": {"percentageOfNodesToScores": 50},
    "field with a capital": {"Parallelism": 8},
    "field of a newer version": {"delayCacheUntilActive": True},
    "percentage of a profile": {"profiles": [{"percentageOfNodesToScore": 10}]},
    "percentage of a profile too large": {"profiles": [{"percentageOfNodesToScore": 101}]},
    "healthz": {"healthzBindAddress": "0.0.0.0:0", "metricsBindAddress": "127.0.0.1:0"},
    "healthz with a port": {"healthzBindAddress": "0.0.0.0:10251"},
    "healthz without a port": {"healthzBindAddress": "0.0.0.0"},
    "profiling": {"enableProfiling": False, "enableContentionProfiling": False},
    "profiling as a string": {"enableProfiling": "false"},
    "algorithmSource": {"algorithmSource": {"provider": "DefaultProvider"}},
    "schedulerName at the top": {"schedulerName": "x"},
    # Numbers
    "parallelism": {"parallelism": 8},
    "parallelism 0": {"parallelism": 0},
    "parallelism as a string": {"parallelism": "8"},
    "parallelism 1.5": {"parallelism": 1.5},
    "parallelism of 64 bits": {"parallelism": 1 << 40},
    "percentage -1": {"percentageOfNodesToScore": -1},
    "percentage 100": {"percentageOfNodesToScore": 100},
    "percentage 101": {"percentageOfNodesToScore": 101},
    "backoff": {"podInitialBackoffSeconds": 2, "podMaxBackoffSeconds": 2},
    "backoff 0": {"podInitialBackoffSeconds": 0},
    "backoff turned round": {"podInitialBackoffSeconds": 20},
    "burst": {"clientConnection": {"burst": 10, "qps": 5.5, "contentType": "application/json"}},
    "burst -1": {"clientConnection": {"burst": -1}},
    "qps as a string": {"clientConnection": {"qps": "5"}},
    "kubeconfig under its flag's name": {"clientConnection": {"kubeConfig": "/x"}},
    # Leader election
    "leases": election(resourceLock="leases"),
    "configmapsleases": election(resourceLock="configmapsleases"),
    "endpointsleases": election(resourceLock="endpointsleases"),
    "endpoints": election(resourceLock="endpoints"),
    "another lock": election(resourceLock="lease"),
    "configmapsleases unused": {"leaderElection": {"leaderElect": False, "resourceLock": "configmapsleases"}},
    "election": election(leaseDuration="30s", renewDeadline="20s", retryPeriod="2s", resourceName="a"),
    "election turned round": election(leaseDuration="10s", renewDeadline="15s"),
    "election with a number": election(leaseDuration=30),
    "election with another unit": election(leaseDuration="30 s"),
    "election negative": election(retryPeriod="-1s"),
    "old names of the lock": election(lockObjectName="a", lockObjectNamespace="b"),
    # Profiles
    "two profiles": {"profiles": [{"schedulerName": "a"}, {"schedulerName": "b"}]},
    "two profiles of one name": {"profiles": [{"schedulerName": "a"}, {"schedulerName": "a"}]},
    "two profiles, one without a name": {"profiles": [{"schedulerName": "a"}, {}]},
    "a profile with an empty name": {"profiles": [{"schedulerName": ""}]},
    "profiles as a mapping": {"profiles": {"schedulerName": "a"}},
    "profiles with other orders": {
        "profiles": [
            {"schedulerName": "a", "plugins": {"queueSort": names("PrioritySort", disabled=("*",))}},
            {"schedulerName": "b"},
        ]
    },
    # Plugins
    "unknown plugin": plugins(filter=names("Coscheduling")),
    "unknown plugin disabled": plugins(filter=names(disabled=("Coscheduling",))),
    "misspelt point": plugins(filters=names("NodeName")),
    "plugin at another point": plugins(score=names("NodeName")),
    "plugin twice": plugins(score=names("ImageLocality", "ImageLocality", disabled=("*",))),
    "plugin again": plugins(score=names("ImageLocality")),
    "plugin instead": plugins(score=names("ImageLocality", disabled=("ImageLocality",))),
    "plugin with a weight": plugins(
        score={"disabled": [{"name": "*"}], "enabled": [{"name": "ImageLocality", "weight": 3}]}
    ),
    "weight as a string": plugins(score={"enabled": [{"name": "ImageLocality", "weight": "3"}]}),
    "no queue": plugins(queueSort=names(disabled=("*",))),
    "queue": plugins(queueSort=names("PrioritySort", disabled=("*",))),
    "no binder": plugins(bind=names(disabled=("*",))),
    "no binder by name": plugins(bind=names(disabled=("DefaultBinder",))),
    "binder": plugins(bind=names("DefaultBinder", disabled=("*",))),
    "no scores": plugins(score=names(disabled=("*",)), preScore=names(disabled=("*",))),
    "multiPoint": plugins(multiPoint=names("NodeName")),
    "multiPoint unknown": plugins(multiPoint=names("Coscheduling")),
    "multiPoint off": plugins(multiPoint=names(disabled=("*",))),
    "multiPoint off but two": plugins(multiPoint=names("PrioritySort", "DefaultBinder", disabled=("*",))),
    "multiPoint off, points": plugins(
        multiPoint=names(disabled=("*",)), queueSort=names("PrioritySort"), bind=names("DefaultBinder")
    ),
    "preEnqueue": plugins(preEnqueue=names(disabled=("SchedulingGates",))),
    "placement": plugins(placementGenerate=names(disabled=("*",))),
    "SelectorSpread": plugins(score=names("SelectorSpread")),
    "SelectorSpread everywhere": plugins(multiPoint=names("SelectorSpread")),
    "NodeLabel": plugins(filter=names("NodeLabel")),
    "CinderLimits": plugins(filter=names("CinderLimits")),
    "EBSLimits": plugins(filter=names("EBSLimits", disabled=("EBSLimits",))),
    "MostAllocated": plugins(score=names("NodeResourcesMostAllocated")),
    "Fit beside LeastAllocated": plugins(score=names("NodeResourcesFit")),
    "DynamicResources": plugins(filter=names("DynamicResources")),
    "plugins as a list": {"profiles": [{"plugins": [{"name": "NodeName"}]}]},
    # Arguments
    "arguments": arguments("NodeAffinity", {}),
    "arguments missing": {"profiles": [{"pluginConfig": [{"name": "NodeAffinity"}]}]},
    "arguments null": arguments("NodeAffinity", None),
    "arguments of an unknown plugin": arguments("Coscheduling", {"permitWaitingTimeSeconds": 60}),
    "arguments missing of an unknown plugin": {"profiles": [{"pluginConfig": [{"name": "Coscheduling"}]}]},
    "arguments twice": {"profiles": [{"pluginConfig": [{"name": "NodeAffinity", "args": {}}] * 2}]},
    "arguments of another kind": arguments("NodeAffinity", {"kind": "NodeResourcesFitArgs"}),
    "arguments of their kind": arguments("NodeAffinity", {"kind": "NodeAffinityArgs"}),
    "arguments misspelt": arguments("NodeAffinity", {"addedAffinities": {}}),
    "preemption": arguments("DefaultPreemption", {"minCandidateNodesPercentage": 5}),
    "preemption 0": arguments("DefaultPreemption", {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0}),
    "preemption 101": arguments("DefaultPreemption", {"minCandidateNodesPercentage": 101}),
    "hard weight": arguments("InterPodAffinity", {"hardPodAffinityWeight": 100}),
    "hard weight 101": arguments("InterPodAffinity", {"hardPodAffinityWeight": 101}),
    "ignored terms": arguments("InterPodAffinity", {"ignorePreferredTermsOfExistingPods": True}),
    "least": strategy("LeastAllocated", resources=[{"name": "cpu", "weight": 1}]),
    "most": strategy("MostAllocated", resources=[{"name": "cpu", "weight": 100}]),
    "most without a weight": strategy("MostAllocated", resources=[{"name": "cpu"}]),
    "most of 101": strategy("MostAllocated", resources=[{"name": "cpu", "weight": 101}]),
    "another strategy": strategy("Fullest"),
    "no strategy": arguments("NodeResourcesFit", {"scoringStrategy": {}}),
    "ratio": strategy("RequestedToCapacityRatio", requestedToCapacityRatio={"shape": SHAPE}),
    "ratio missing": strategy("RequestedToCapacityRatio"),
    "ratio falls": strategy("RequestedToCapacityRatio", requestedToCapacityRatio={"shape": SHAPE[::-1]}),
    "ratio of 11": strategy(
        "RequestedToCapacityRatio", requestedToCapacityRatio={"shape": [{"utilization": 1, "score": 11}]}
    ),
    "ratio of nothing": strategy("RequestedToCapacityRatio", requestedToCapacityRatio={"shape": []}),
    "ratio of another strategy": strategy("MostAllocated", requestedToCapacityRatio={"shape": SHAPE}),
    "ignored resources": arguments("NodeResourcesFit", {"ignoredResources": ["a/b"], "ignoredResourceGroups": ["a"]}),
    "ignored groups wrong": arguments("NodeResourcesFit", {"ignoredResourceGroups": ["a/b"]}),
    "ignored resources wrong": arguments("NodeResourcesFit", {"ignoredResources": ["a b"]}),
    "balanced": arguments("NodeResourcesBalancedAllocation", {"resources": [{"name": "cpu", "weight": 1}]}),
    "balanced 2": arguments("NodeResourcesBalancedAllocation", {"resources": [{"name": "cpu", "weight": 2}]}),
    "balanced twice": arguments("NodeResourcesBalancedAllocation", {"resources": [{"name": "cpu", "weight": 1}] * 2}),
    "spread": arguments("PodTopologySpread", {"defaultingType": "List", "defaultConstraints": [SPREAD]}),
    "spread without its type": arguments("PodTopologySpread", {"defaultConstraints": [SPREAD]}),
    "spread of another type": arguments("PodTopologySpread", {"defaultingType": "Lists"}),
    "spread twice": arguments("PodTopologySpread", {"defaultingType": "List", "defaultConstraints": [SPREAD, SPREAD]}),
    "spread 0": arguments(
        "PodTopologySpread", {"defaultingType": "List", "defaultConstraints": [SPREAD | {"maxSkew": 0}]}
    ),
    "spread with a selector": arguments(
        "PodTopologySpread", {"defaultingType": "List", "defaultConstraints": [SPREAD | {"labelSelector": {}}]}
    ),
    "spread with minDomains": arguments(
        "PodTopologySpread",
        {
            "defaultingType": "List",
            "defaultConstraints": [SPREAD | {"minDomains": 2, "whenUnsatisfiable": "DoNotSchedule"}],
        },
    ),
    "spread else": arguments(
        "PodTopologySpread", {"defaultingType": "List", "defaultConstraints": [SPREAD | {"whenUnsatisfiable": "Never"}]}
    ),
    "volumes": arguments("VolumeBinding", {"bindTimeoutSeconds": 0}),
    "volumes negative": arguments("VolumeBinding", {"bindTimeoutSeconds": -1}),
    "volumes with a shape": arguments("VolumeBinding", {"shape": SHAPE}),
    "affinity": affinity(operator="In", values=["a"]),
    "affinity without values": affinity(operator="In", values=[]),
    "affinity with values": affinity(operator="Exists", values=["a"]),
    "affinity with another operator": affinity(operator="Equals", values=["a"]),
    "affinity greater": affinity(operator="Gt", values=["1"]),
    "affinity greater than a word": affinity(operator="Gt", values=["a"]),
    "affinity with a number": affinity(operator="Gt", values=[1]),
    "affinity to no key": affinity(key="a b", operator="Exists"),
    "affinity to nothing": arguments(
        "NodeAffinity", {"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    ),
    "dynamic resources": arguments("DynamicResources", {"filterTimeout": "5s"}),
    # Extenders
    "enableHttps": entry(enableHttps=True),
    "weight missing": entry(weight=None),
    "weight 0": entry(weight=0),
    "weight missing without scores": entry(weight=None, prioritizeVerb=None),
    "weight as a string in an entry": entry(weight="5"),
    "weight of more than 64 bits": entry(weight=99999999999999999999),
    "timeout as a number": entry(httpTimeout=1),
    "timeout in nanoseconds": entry(httpTimeout="1000000000"),
    "timeout with a fraction": entry(httpTimeout="1.5s"),
    "ignorable as a word": entry(ignorable="yes"),
    "resource of Kubernetes": entry(managedResources=[{"name": "kubernetes.io/x"}]),
    "resource without a domain": entry(managedResources=[{"name": "gpu"}]),
    "resource with a prefix": entry(managedResources=[{"name": "requests.example.com/gpu"}]),
    "resource twice": entry(managedResources=[{"name": "a.b/c"}, {"name": "a.b/c"}]),
    "resource misspelt": entry(managedResources=[{"name": "a.b/c", "ignoreByScheduler": True}]),
    "two extenders of a resource": {"extenders": [ENTRY, ENTRY]},
    "two binders": {
        "extenders": [{"urlPrefix": "http://a", "bindVerb": "bind"}, {"urlPrefix": "http://b", "bindVerb": "b"}]
    },
    "certificates as text": entry(tlsConfig=TLS | {"caData": "-----BEGIN"}),
    "insecure with an authority": entry(tlsConfig={"insecure": True}),
    "tls misspelt": entry(tlsConfig={"cafile": "/x"}),
    "an entry of nothing": {"extenders": [{}]},
    "an entry that is a word": {"extenders": ["http://a"]},
    "apiVersion of an extender": entry(apiVersion="v1"),
    # Of public pages (facts.md c72)
    "public: no scores in a second profile": {
        "profiles": [
            {"schedulerName": "default-scheduler"},
            {
                "schedulerName": "no-scoring-scheduler",
                "plugins": {"preScore": names(disabled=("*",)), "score": names(disabled=("*",))},
            },
        ]
    },
    "public: bin packing by MostAllocated": strategy(
        "MostAllocated",
        resources=[{"name": "cpu", "weight": 1}, {"name": "intel.com/foo", "weight": 3}],
    ),
    "public: bin packing by a ratio": strategy(
        "RequestedToCapacityRatio",
        resources=[{"name": "intel.com/foo", "weight": 3}, {"name": "intel.com/bar", "weight": 3}],
        requestedToCapacityRatio={"shape": SHAPE},
    ),
    "public: an added affinity": affinity(key="scheduler-profile", operator="In", values=["foo"]),
    "public: Coscheduling": {
        "leaderElection": {"leaderElect": False},
        "profiles": [
            {
                "schedulerName": "default-scheduler",
                "plugins": {
                    "multiPoint": names("Coscheduling"),
                    "queueSort": names("Coscheduling", disabled=("*",)),
                },
                "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}}],
            }
        ],
    },
    "public: telemetry and GPU": {
        "extenders": [
            ENTRY,
            {
                "urlPrefix": "https://gpu-service.default.svc.cluster.local:9001",
                "filterVerb": "scheduler/filter",
                "bindVerb": "scheduler/bind",
                "enableHTTPS": True,
                "managedResources": [{"name": "gpu.intel.com/i915", "ignoredByScheduler": False}],
                "ignorable": True,
                "nodeCacheCapable": True,
                "tlsConfig": TLS,
            },
        ]
    },
}


def documents(minor: int) -> Iterator[tuple[str, Object]]:
    """Each case in each form that a scheduler reads, with its name in `starts.json`."""
    for form in FORMS[minor]:
        for name, fields in CASES.items():
            head = {"apiVersion": f"{GROUP}/{form}", "kind": "KubeSchedulerConfiguration"}
            yield f"{form}: {name}", head | fields


def starts(minor: int) -> dict[str, bool]:
    """Whether the real scheduler of a minor version started with each document."""
    found: dict[str, dict[str, bool]] = json.loads(STARTS.read_text())
    return found[f"1.{minor}"]
