"""PyTorch's `cuda` on a model of CUDA, whose time passes while the host waits."""

from support.roofline import Accelerator

from gpu_profile.units import NS_PER_S


class Waiting(Accelerator):
    """Waiting for a device takes until all that was queued has run."""

    def synchronize(self, ordinal: int) -> None:
        """Note it, and turn the clock."""
        super().synchronize(ordinal)
        until_ns = max(stream.tail_ns for stream in self.cuda.streams.values())
        self.cuda.clock.advance(max(0, until_ns - self.cuda.clock.now_ns()) / NS_PER_S)
