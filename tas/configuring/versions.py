"""Which kube-scheduler an image is, and which configurations it reads (docs/reference/scheduler-versions.md)."""

import re

from tas.errors import InvalidInputError

GROUP = "kubescheduler.config.k8s.io"
OLDEST = 19
"""The first minor version with extenders in the form that this product writes."""

LAST_POLICY = 22
"""The last minor version that reads a Policy."""

EMPTY_NODES = 33
"""The first minor version whose scores for resources know nothing of nodes that an extender sent back: facts.md c73."""

_SERVED = {"v1": (25, 9999), "v1beta3": (23, 28), "v1beta2": (22, 27), "v1beta1": (19, 22)}
"""The first and the last minor version that reads each form; the newest form first."""

_TAG = re.compile(r":v?(?P<major>\d{1,4})\.(?P<minor>\d{1,4})(?P<rest>[^:/]*)")


def minor_of_image(image: str) -> int:
    """The minor version of the kube-scheduler in an image, by its tag. Raises InvalidInputError."""
    name = image.partition("@")[0]
    found = _TAG.search(name, name.rfind("/") + 1)
    if found is None:
        raise InvalidInputError("manifest", "image", image, "the tag has no version: give --kube-version")
    return _checked(found["major"], found["minor"], "manifest", "image", image)


def minor_of_version(text: str) -> int:
    """The minor version of a version such as `1.28`, `v1.28.3` or `1.28.x`. Raises InvalidInputError."""
    found = re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})([.+-].*)?", text)
    if found is None:
        raise InvalidInputError("options", "--kube-version", text, "must be a version such as 1.28")
    return _checked(found[1], found[2], "options", "--kube-version", text)


def api_version(minor: int) -> str:
    """The preferred form of KubeSchedulerConfiguration for a minor version, as `apiVersion`.

    Raises:
        InvalidInputError: if the minor version is below 19.
    """
    if minor < OLDEST:
        raise InvalidInputError("kube-scheduler", "version", f"1.{minor}", f"is not supported: at least 1.{OLDEST}")
    # As the original: v1beta3 only where nothing else is read, which is nowhere.
    preferred = next(form for form in ("v1", "v1beta2", "v1beta1") if reads(minor, f"{GROUP}/{form}"))
    return f"{GROUP}/{preferred}"


def reads(minor: int, version: object) -> bool:
    """Whether a kube-scheduler of this minor version reads a configuration of this `apiVersion`."""
    if not isinstance(version, str):
        return False
    group, _, form = version.partition("/")
    first, last = _SERVED.get(form, (1, 0))
    return group == GROUP and first <= minor <= last


def _checked(major: str, minor: str, subject: str, field: str, text: str) -> int:
    if major != "1":
        raise InvalidInputError(subject, field, text, "the major version must be 1")
    return int(minor)
