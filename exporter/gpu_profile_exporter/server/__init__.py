"""The listener: HTTP/1.1 by h11 over asyncio, under deadlines, in a thread of its own.

Read in this order:

- `listener`: the server's life. `settings` and `web_config` are what it was given; `limits` its bounds.
- `admission`: which connection is closed where there are too many; `connection`: one that may be slow or silent.
- `tls`, `auth`: who may ask, and what it may cost to find out.
- `answers`: requests one by one: who may ask, deadlines, what is counted (`counts`), and a handler that answers.
- `rendering`: the handler of scrapes: one rendering for all that wait (`worker`).
- `routes`: paths and what they answer; `page/`: the landing page and the JSON that keeps it fresh.

All but `routes` and `page/` carry requests and know no GPU. Imports the configuration and the readings. A new path is a
case in `routes.Routes` and an entry of `routes.ROUTES`.
"""

from gpu_profile_exporter.server.limits import Limits
from gpu_profile_exporter.server.listener import Server
from gpu_profile_exporter.server.rendering import Rendering

__all__ = ["Limits", "Rendering", "Server"]
