"""Scenarios of simulated nodes, in TOML."""

#: A MIG instance with half of an H100, as a part of a device.
HALF = '[[device.mig]]\nprofile = "3g.40gb"\n'


def node_of(*models: str) -> str:
    """A scenario with an idle GPU of each model."""
    return "".join(f'[[device]]\nmodel = "{model}"\n' for model in models)


def busy(duty: float) -> str:
    """The part of a scenario that makes a device busy for this share of every 100 ms."""
    return f"[[device.phase]]\nduration_s = 3600\nduty = {duty}\nperiod_s = 0.1\n"
