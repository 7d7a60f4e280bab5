"""`python -m gpu_profile_exporter.reader`: the launcher, which the exporter starts and nobody else."""

from gpu_profile_exporter.reader.forking import main

main()
