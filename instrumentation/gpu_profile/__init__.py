"""What GPUs do for the code that uses them. The public names load on first use."""
