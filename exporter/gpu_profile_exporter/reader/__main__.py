"""`python -m gpu_profile_exporter.reader` runs the launcher. Only the exporter starts it."""

from gpu_profile_exporter.reader.launcher_process import main

main()
