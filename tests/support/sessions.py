"""Sessions of this process that a test drives."""

from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import Session


def new_session() -> Session:
    """A new session of the process, which replaces the previous one."""
    session = process._make()
    session.active = True
    process.current = session
    return session
