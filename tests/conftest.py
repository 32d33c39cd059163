"""What every test shares: Hypothesis without a clock, because the machines are shared and noisy."""

from hypothesis import HealthCheck, settings

settings.register_profile("rltuned", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rltuned")
