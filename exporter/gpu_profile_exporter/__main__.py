"""The console script and `python -m gpu_profile_exporter`: load the command, and run it."""

from gpu_profile_exporter import quiet_interrupts


def main() -> None:
    """Load the command, then run it."""
    with quiet_interrupts():
        from gpu_profile_exporter import cli
    cli.main()


if __name__ == "__main__":
    main()
