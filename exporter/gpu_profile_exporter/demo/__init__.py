"""The demonstration: an exporter, a small inference service in its own process, and a table of what the GPU did."""
