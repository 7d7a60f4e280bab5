"""Memory that regions took and gave back: of recordings, over time, and by PyTorch's own counts."""
