"""Bad input with a real API server and a real nats-server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.integration.servers import eventually
from tests.kubernetes.admin import Admin, AdminError
from tests.kubernetes.bad_input_scenarios import BadInputScenarios
from tests.kubernetes.enforcement import Refusing, enforced, quick_refusals

__all__ = ["enforced", "quick_refusals"]

ADMISSION = "/apis/admissionregistration.k8s.io/v1"


@pytest.fixture
def refusing(admin: Admin) -> Refusing:
    """Refuses the label by a ValidatingAdmissionPolicy."""

    @asynccontextmanager
    async def refusing(node: str, label: str) -> AsyncIterator[str]:
        name, message = f"refuse-{label}", f"ask the team before you label with {label}"
        is_other = f"object.metadata.name != '{node}' || !('{label}' in object.metadata.labels)"
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
        policy = {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": is_other, "message": message}],
        }
        binding = {"policyName": name, "validationActions": ["Deny"]}
        kinds = (("validatingadmissionpolicies", policy), ("validatingadmissionpolicybindings", binding))
        for plural, spec in kinds:
            await admin.create(f"{ADMISSION}/{plural}", {"metadata": {"name": name}, "spec": spec})

        async def is_refused() -> bool:
            try:
                await admin.patch(f"/api/v1/nodes/{node}?dryRun=All", {"metadata": {"labels": {label: "violating"}}})
            except AdminError as error:
                return message in str(error)
            return False

        try:
            await eventually(is_refused, every=0.1)
            yield message
        finally:
            for plural, _ in kinds:
                await admin.delete(f"{ADMISSION}/{plural}/{name}")

    return refusing


class TestBadInput(BadInputScenarios):
    refuses_one_label = True
