"""`python -m gpu_profile_exporter` runs the command."""

from gpu_profile_exporter.cli import main

main()
