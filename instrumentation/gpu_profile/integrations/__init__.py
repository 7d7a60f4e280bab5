"""Integrations with other tools. A module is loaded by its tool or by the user, and needs that tool.

- `torch`: `instrument` makes a training loop's parts regions. `lightning` and `transformers` are callbacks for these
  trainers, with their shared code in `trainer`. `open_regions`: regions that one callback begins and another ends.
- `opentelemetry`: the instrumentor, loaded by `opentelemetry-instrument` through its entry point.
- `pytest_plugin`: budgets of energy and time for tests, loaded through its entry point. Every pytest run loads it, so
  it loads `measured_test` and `budgets` only with the first measured test.
- `jupyter`: the magic `%%gpu_profile`, through `%load_ext gpu_profile`.

Imports the regions, the monitor, the analysis and lower layers. No integration imports another's tool, and the rest of
the library imports none of them. Without its tool, a module raises ImportError with one line that names the package to
install. A new integration needs a module here, a page or section in docs/, and an extra or entry point in
pyproject.toml. It also needs a case in tests/unit/integrations/test_missing.py.
"""
