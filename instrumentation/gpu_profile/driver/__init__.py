"""Where the world begins: drivers read devices. One protocol, one grammar to name them."""

from gpu_profile.driver.protocol import Capability, Driver

__all__ = ["Capability", "Driver"]
