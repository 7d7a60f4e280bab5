"""The listener: HTTP/1.1 by h11 over asyncio, with deadlines, in its own thread.

Read in this order:

- `listener`: starts and stops the server and accepts connections. `limits`: its limits.
- `settings`, `web_config`, `files`: the web configuration file, and its renewal while the server runs.
- `admission`: chooses the connection to close when too many are open. `connection`: one connection with its deadlines.
- `tls`, `auth`: certificates and passwords, with a limit on the CPU time of password checks.
- `answers`: authenticates each request, counts it (`counts`) and passes it to a handler under a deadline.
- `rendering`: the handler of scrapes. Waiting requests for the same answer share one rendering (`worker`).
- `routes`: the paths and their answers. `page/`: the landing page and the JSON of the devices.

Only `routes` and `page/` depend on GPUs. Imports the configuration and the readings. A new path is a case in
`routes.Routes` and an entry of `routes.ROUTES`.
"""

from gpu_profile_exporter.server.limits import Limits
from gpu_profile_exporter.server.listener import Server
from gpu_profile_exporter.server.rendering import Rendering

__all__ = ["Limits", "Rendering", "Server"]
