"""The core: every rule of the product as pure functions and values.

Nothing here does I/O, reads a clock or knows NATS, HTTP or Kubernetes clients: values come in, `now` included,
and values go out. Times are seconds since 1970 (`float`), durations are seconds, quantities are exact integers
of 10⁻⁹ (see `tas.quantity`).
"""
