"""Where other tools find gpu-profile: each module is loaded by its tool alone, and needs that tool.

- `torch`: `instrument` makes a training loop's parts regions. `lightning` and `transformers` are callbacks for these
  trainers, which share `trainer`. `open_regions` are regions that one callback begins and another ends.
- `opentelemetry`: the instrumentor that `opentelemetry-instrument` finds by its entry point.
- `pytest_plugin`: budgets of energy and time for tests, found by its entry point. Every pytest run loads it, so
  `measured_test` and `budgets` are loaded with the first test that is measured.
- `jupyter`: the magic `%%gpu_profile`, through `%load_ext gpu_profile`.

Imports the regions, the monitor, the analysis and what is below; no integration imports another's tool, and nothing
here is imported by the rest of the library. A missing tool is an ImportError of one line that says what to install. One
more integration is a module here, its page or section in docs/, its extra or entry point in pyproject.toml, and a case
in tests/unit/integrations/test_missing.py.
"""
