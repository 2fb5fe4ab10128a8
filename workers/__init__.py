"""Workers: each is one class with `name`, `unready()` and `run()`; any replica can be killed at any line."""
