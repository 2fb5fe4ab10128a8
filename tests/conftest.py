"""What holds for every test."""

from hypothesis import HealthCheck, settings

# How long an example takes is no property of the code on a machine that runs other things too.
settings.register_profile("tas", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tas")
