"""`python -m gpu_profile.cli`."""

from gpu_profile.cli import main

main()
