"""Scenarios for any API server: tests/integration runs them with the sandbox, tests/e2e with a real one."""
