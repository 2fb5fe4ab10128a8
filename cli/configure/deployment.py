"""`tas configure deployment`: a second scheduler."""

from typing import Any

import click

from cli.configure.errors import errors_shown
from cli.configure.flags import Command, extender_options, extenders_of
from cli.output import echo
from tas.configuring.second_scheduler import SecondScheduler, manifests
from tas.configuring.versions import minor_of_image, minor_of_version
from tas.diagnosis.url import url_of


@click.command("deployment", cls=Command, params=[
    click.Option(["--image"], required=True, metavar="IMAGE",
                 help="Of kube-scheduler, such as registry.k8s.io/kube-scheduler:v1.30.4."),
    click.Option(["--name"], default="telemetry-scheduler", show_default=True, metavar="NAME",
                 help="Of all objects, and the schedulerName of pods that use it."),
    click.Option(["--namespace"], default="kube-system", show_default=True, metavar="NAMESPACE",
                 help="Of the Deployment."),
    click.Option(["--tls-secret"], default="tas-scheduler-certs", show_default=True, metavar="NAME",
                 help="The Secret with client.crt, client.key and ca.crt."),
    click.Option(["--kube-version"], metavar="1.N", help="The scheduler's version. [default: that of its image]"),
    *extender_options(),
])  # fmt: skip
@errors_shown
def deployment(
    *,
    image: str,
    name: str,
    namespace: str,
    tls_secret: str,
    kube_version: str | None,
    extenders: tuple[str, ...],
    **about_extenders: Any,
) -> int:
    """Print a second scheduler as a Deployment, for a cluster whose control plane others manage.

    The output is for `kubectl apply -f -`. Pods use this scheduler by their `schedulerName`.
    """
    second = SecondScheduler(
        name=name,
        namespace=namespace,
        image=image,
        minor=minor_of_image(image) if kube_version is None else minor_of_version(kube_version),
        secret=tls_secret,
        extenders=extenders_of(extenders=extenders or ("telemetry",), **about_extenders),
    )
    echo(manifests(second), nl=False)
    for url, kind in {each.url: each.kind for each in second.extenders}.items():
        if (parts := url_of(url)) is not None and parts.is_loopback:
            text = (
                f"is the pod of this scheduler itself: add a container that listens there, or give another --{kind}-url"
            )
            echo(f"note: {url} {text}", err=True)
    return 0
