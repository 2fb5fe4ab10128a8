"""Patches of the status of policies, for whoever writes it: with the bus `status`, without it `outage`."""

from collections.abc import Iterator
from enum import StrEnum

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Counter

from tas.enforcing.managers import FIELD_MANAGER
from tas.policy.policy import PolicyKey
from tas.values.nouns import counted
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ConflictError, ExpiredError, KubernetesError, NotFoundError
from workers.kubernetes.resources import POLICIES, Metadata, PolicyObject
from workers.process.logs import GroupedLog


class Unpatched(StrEnum):
    """Why a status was not patched."""

    CONFLICT = "conflict"
    """The policy has changed since it was read, or that was too long ago: its watch brings it as it is now."""
    GONE = "gone"
    """There is no policy of this name."""
    FAILED = "failed"
    """The API server gave no answer, or refused the patch."""


PATCHED = "patched"


class StatusPatches:
    """Sends them, and counts and logs what became of each."""

    def __init__(
        self,
        client: KubernetesClient,
        registry: CollectorRegistry,
    ) -> None:
        self._client = client
        self._failing: dict[PolicyKey, str] = {}  # the last error
        self._grouped = GroupedLog(structlog.get_logger("status"), kind="policy")
        self._count = Counter(
            "tas_policy_status_patches",
            "Attempts to patch a policy's status, by result.",
            ["result"],
            registry=registry,
        )
        for result in (PATCHED, *Unpatched):
            self._count.labels(result)

    async def send(
        self, metadata: Metadata, status: object, *, spec: object, read_at: float
    ) -> PolicyObject | Unpatched:
        """Replaces the status of a policy, unless the policy has changed since it was read, at `read_at`.

        `read_at` is monotonic. Returns the policy as it is then, with `spec`: it has not changed, and what was kept of
        it was decided when it was read.
        """
        key = PolicyKey(metadata.namespace, metadata.name)
        patch = {"metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version}, "status": status}
        try:
            after = await self._client.merge_patch(
                POLICIES,
                metadata.name,
                patch,
                namespace=metadata.namespace,
                subresource="status",
                field_manager=FIELD_MANAGER,
                read_at=read_at,
            )
        except (ConflictError, ExpiredError):
            result = Unpatched.CONFLICT
        except NotFoundError:
            result = Unpatched.GONE
        except KubernetesError as error:
            result = Unpatched.FAILED
            self._failing[key] = str(error)
            cause = str(error).replace(str(key), "POLICY")
            self._grouped.warning("policy_status_failed", cause, str(key), error=str(error))
        else:
            self._failing.pop(key, None)
            self._count.labels(PATCHED).inc()
            return msgspec.structs.replace(after, spec=spec)
        if result is not Unpatched.FAILED:
            self._failing.pop(key, None)
        self._count.labels(result).inc()
        return result

    def settle(self, key: PolicyKey) -> None:
        """Notes that a policy is deleted, or has the status that it should have: an answer to a patch may be lost."""
        self._failing.pop(key, None)

    def forget(self) -> None:
        """Forgets what has failed: another replica writes now, or all is listed anew."""
        self._failing.clear()

    def concerns(self) -> Iterator[str]:
        """How many policies have a status that the API server did not take last, with the first of them."""
        if self._failing:
            key, error = min(self._failing.items())
            yield f"the status of {counted(len(self._failing), 'policy')} cannot be written, as of {key}: {error}"
