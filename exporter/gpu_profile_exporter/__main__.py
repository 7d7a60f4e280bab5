"""`python -m gpu_profile_exporter` is the command."""

from gpu_profile_exporter.cli import main

main()
