"""Sessions of this process that a test drives by hand."""

from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import Session


def new_session() -> Session:
    """Another session of the process, in place of the one before."""
    session = process._make()
    session.active = True
    process.current = session
    return session
