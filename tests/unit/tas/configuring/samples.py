"""Manifests and configurations of schedulers, as kubeadm and others write them."""

from tas.configuring.extenders import GPU_RESOURCES, TELEMETRY_RESOURCE, URLS, Extender, ExtenderKind
from tas.configuring.plan import Options

KUBEADM = """\
apiVersion: v1
kind: Pod
metadata:
  creationTimestamp: null
  labels:
    component: kube-scheduler
    tier: control-plane
  name: kube-scheduler
  namespace: kube-system
spec:
  containers:
  - command:
    - kube-scheduler
    - --authentication-kubeconfig=/etc/kubernetes/scheduler.conf
    - --authorization-kubeconfig=/etc/kubernetes/scheduler.conf
    - --bind-address=127.0.0.1   # only here
    # one of several
    - --kubeconfig=/etc/kubernetes/own.conf
    - --leader-elect=true
    image: registry.k8s.io/kube-scheduler:v1.28.3
    imagePullPolicy: IfNotPresent
    livenessProbe: {failureThreshold: 8,   httpGet: {host: 127.0.0.1, path: /healthz, port: 10259, scheme: HTTPS}}
    name: kube-scheduler
    resources:
      requests:
        cpu: 100m
    volumeMounts:
    - mountPath: /etc/kubernetes/scheduler.conf
      name: kubeconfig
      readOnly: true
  hostNetwork: true
  priorityClassName: system-node-critical
  securityContext:
    seccompProfile:
      type: RuntimeDefault
  volumes:
  - hostPath:
      path: /etc/kubernetes/scheduler.conf
      type: FileOrCreate
    name: kubeconfig
status: {}
"""

DEST = "/d/cfg.yaml"


def manifest(*arguments: str, image: str = "reg/kube-scheduler:v1.25.2", more: str = "", volumes: str = "") -> str:
    """The minimal manifest, with these arguments; `more` are fields of the container, `volumes` of the spec."""
    command = ["kube-scheduler", *arguments, "--authentication-kubeconfig=/etc/kubernetes/scheduler.conf"]
    lines = "".join(f"    - {word}\n" for word in [*command, "--leader-elect=true"])
    return (
        "kind: Pod\nspec:\n  containers:\n  - command:\n"
        f"{lines}    image: {image}\n{more}{volumes}  hostNetwork: true\n"
    )


def telemetry(**changes: object) -> Extender:
    """The telemetry extender with the defaults of the flags."""
    return Extender(
        **{
            "kind": ExtenderKind.TELEMETRY,
            "url": URLS[ExtenderKind.TELEMETRY],
            "resources": (TELEMETRY_RESOURCE,),
            **changes,
        }  # type: ignore[arg-type]
    )


def gpu(**changes: object) -> Extender:
    """The GPU extender with the defaults of the flags."""
    return Extender(
        **{"kind": ExtenderKind.GPU, "url": URLS[ExtenderKind.GPU], "resources": GPU_RESOURCES, **changes}  # type: ignore[arg-type]
    )


def options(*extenders: Extender, **changes: object) -> Options:
    """The options of these extenders, by default of telemetry."""
    defaults = {"extenders": extenders or (telemetry(),), "config": DEST, "certificates": "/etc/certs/"}
    return Options(**{**defaults, **changes})  # type: ignore[arg-type]
