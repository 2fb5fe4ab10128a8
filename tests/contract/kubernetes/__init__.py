"""Tests of an API server: run on the sandbox here, and on a real API server in `tests/e2e`."""

import pytest

pytest.register_assert_rewrite("tests.contract.kubernetes.suite")
