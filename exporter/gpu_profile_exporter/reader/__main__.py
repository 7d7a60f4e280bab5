"""`python -m gpu_profile_exporter.reader`: the exporter starts it, nobody else."""

from gpu_profile_exporter.reader.child import main

main()
