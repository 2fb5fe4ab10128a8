"""What we need of an API server, asked of the sandbox here and of a real one in `tests/e2e`."""

import pytest

pytest.register_assert_rewrite("tests.contract.kubernetes.suite")
