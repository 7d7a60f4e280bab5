"""Simulated nodes in a scenario's own words."""

#: Half of an H100 below a device.
HALF = '[[device.mig]]\nprofile = "3g.40gb"\n'


def node_of(*models: str) -> str:
    """A GPU of each model, all idle."""
    return "".join(f'[[device]]\nmodel = "{model}"\n' for model in models)


def busy(duty: float) -> str:
    """What follows a device that is busy for this share of every 100 ms."""
    return f"[[device.phase]]\nduration_s = 3600\nduty = {duty}\nperiod_s = 0.1\n"
