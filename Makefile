# What builds, ships and checks gpu-profile. `make` lists the targets; each sets up what it needs.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Tests start hundreds of Python processes: each would compile all of its modules anew.
unexport PYTHONDONTWRITEBYTECODE
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --disable-pip-version-check
PYTHON ?=
# A quarter of the tests' time is waiting: one more than two cores.
WORKERS ?= 3
PYTEST_ARGS ?=
# The tests of the frameworks skip without these. This version, for others pull in gigabytes of CUDA.
TORCH := torch==2.13.0
FRAMEWORKS := $(TORCH) lightning transformers accelerate
CYCLONEDX := cyclonedx-bom==7.5.0
DEBIAN_PACKAGES := prometheus chromium chromium-driver
# `make gpu` takes what its Python has installed, PyTorch above all, and adds what is missing from these wheels.
GPU_VENV := .venv-gpu
GPU_WHEELS ?= .gpu-wheels
GPU_OUT ?= gpu-record
GPU_STAGES ?=
# Of the machine with the GPU.
GPU_PYTHON ?= 3.12

# `quietly TITLE COMMAND...` prints one line, with the seconds that it took. The output is shown only on a failure.
define QUIETLY
quietly() {
  local log began=$$SECONDS code=0
  log=$$(mktemp)
  printf '%s ... ' "$$1"
  shift
  "$$@" >"$$log" 2>&1 </dev/null || code=$$?
  if [ $$code = 0 ]; then
    printf '%d s\n' $$((SECONDS - began))
  else
    printf 'failed after %d s: %s\n' $$((SECONDS - began)) "$$*"
    cat "$$log" >&2
  fi
  rm -f "$$log"
  return $$code
}
apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq --no-install-recommends "$$@"; }
endef

.PHONY: help demo test compiled lint format types imports check bench gpu gpu-wheels image-test dashboards docs wheel sbom frameworks clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/demo.stamp  ## a small service on this machine's GPUs, or on simulated ones, and what it costs [SECONDS=20]
	@exec $(BIN)/gpu-profile-exporter demo $(if $(SECONDS),--seconds $(SECONDS))

# With no way to install Debian's programs, the tests that need them are left out, and said so; so are those of PyTorch,
# which is large. CI leaves nothing out.
test: $(VENV)/dev.stamp  ## every test that this machine can run [WORKERS=3] [PYTEST_ARGS=...]
	@$(QUIETLY)
	without=()
	if ! command -v promtool >/dev/null || ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	      && quietly "Reading Debian's list of packages" apt update \
	      && quietly "Installing Debian's $(DEBIAN_PACKAGES) for the tests" apt install -y $(DEBIAN_PACKAGES); then
	    :
	  elif [ -n "$${CI:-}" ]; then
	    echo "CI needs these programs: apt-get install $(DEBIAN_PACKAGES)" >&2
	    exit 1
	  else
	    echo "Leaving out the tests against Prometheus and a browser. To run them too:"
	    echo "  sudo apt-get install --no-install-recommends $(DEBIAN_PACKAGES)"
	    without=(-m "not debian")
	  fi
	fi
	# The collector that the tests send spans through is linked against the interpreter's shared library.
	library=$$($(PY) -c 'import sys; print("libpython%d.%d" % sys.version_info[:2])')
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && [[ "$$(ldconfig -p)" != *"$$library.so"* ]]; then
	  apt install -y $$library </dev/null >/dev/null || true
	fi
	[ -z "$${CI:-}" ] || $(MAKE) $(VENV)/frameworks.stamp
	# Tests of a module run in one process, so that what they share is set up once; those that take long come first.
	$(PY) -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder "$${without[@]}" $(PYTEST_ARGS)

# Each worker of `make test` would compile all tests and what they import by itself. Errors are for `make test` to report.
compiled: $(VENV)/dev.stamp
	@$(PY) -m pytest --collect-only --quiet >/dev/null 2>&1 || true

lint: $(VENV)/dev.stamp  ## style: ruff's rules and its formatting
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/dev.stamp  ## let ruff mend what it can
	@$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/dev.stamp  ## mypy, strict
	@$(BIN)/mypy

imports: $(VENV)/dev.stamp  ## the floors: who may import whom
	@$(BIN)/lint-imports --no-cache

check: lint types imports test  ## all that a change must pass

# The roofline is measured with PyTorch.
bench: $(VENV)/dev.stamp $(if $(filter roofline,$(or $(ONLY),roofline)),$(VENV)/frameworks.stamp)  ## measure [ONLY=heart|regimes|library|exporter|sidecar|roofline|kernels|truth|serving|fleet|quick] [ACCEPT=1]
	@exec $(PY) tests/benchmarks/run.py $(ONLY)

# Nothing is set on the card, and no network is needed beside the wheels.
gpu: $(GPU_VENV)/made.stamp  ## prove it on this machine's NVIDIA GPU, in 9 minutes [GPU_STAGES=sensors,truth] [GPU_OUT=gpu-record]
	@exec $(GPU_VENV)/bin/python tests/gpu/run.py $(GPU_OUT) $(if $(GPU_STAGES),--stages $(GPU_STAGES)) $(GPU_ARGS)

# PyTorch and CuPy are not among them: they must be there.
gpu-wheels: $(VENV)/made.stamp  ## what `make gpu` needs on a machine without a network, into .gpu-wheels [GPU_PYTHON=3.12]
	@$(QUIETLY)
	rm -rf $(GPU_WHEELS)
	tags=$$(for n in $$(seq 39 -1 12); do echo --platform manylinux_2_$${n}_x86_64; done)
	quietly "Downloading into $(GPU_WHEELS)" \
	  $(PIP) download --dest $(GPU_WHEELS) --only-binary=:all: --implementation cp --python-version $(GPU_PYTHON) \
	  $$tags --platform manylinux2014_x86_64 $$($(PY) tests/gpu/needs.py) pip
	du -sh $(GPU_WHEELS)

image-test: $(VENV)/demo.stamp  ## build and run the container image without a Docker engine (root, minutes)
	@exec docker/image_test.sh $(PY)

dashboards: $(VENV)/dev.stamp  ## write the Grafana dashboards and the docs' tables anew from the catalogue
	@$(PY) grafana/generate.py
	$(PY) docs/generate.py

docs: $(VENV)/docs.stamp  ## the documentation's site, in site/VERSION [WITH=mkdocs|zensical]
	@exec $(PY) docs/build_site.py $(if $(WITH),--with $(WITH))

wheel: $(VENV)/dev.stamp  ## the source distribution and the wheel, in dist/
	@$(QUIETLY)
	quietly "Building into dist" $(PY) -m build --outdir dist
	ls -sh1 dist

# Of a fresh environment, with the extras that the image has.
sbom: $(VENV)/made.stamp  ## what the image's Python environment contains, as CycloneDX, in gpu-profile.cdx.json
	@$(QUIETLY)
	made=$$(mktemp -d)
	trap 'rm -rf "$$made"' EXIT
	extras=$$(sed -nE 's/.*install .*"\.(\[.*\])".*/\1/p' docker/Dockerfile)
	quietly "Installing gpu-profile$$extras" eval "$(PY) -m venv $$made/image && $$made/image/bin/pip install '.$$extras'"
	quietly "Installing CycloneDX's tool" eval "$(PY) -m venv $$made/tool && $$made/tool/bin/pip install $(CYCLONEDX)"
	"$$made/tool/bin/cyclonedx-py" environment "$$made/image/bin/python" --pyproject pyproject.toml --output-reproducible \
	  --validate --output-file gpu-profile.cdx.json
	echo "gpu-profile.cdx.json: $$(grep -c '"purl"' gpu-profile.cdx.json) components; the environment has $$(du -sm "$$made/image" | cut -f1) MB"

frameworks: $(VENV)/frameworks.stamp  ## install PyTorch (CPU), Lightning and Transformers, so that their tests run

clean:  ## remove everything that make made
	@rm -rf $(VENV) $(GPU_VENV) $(GPU_WHEELS) dist build site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
	  gpu-profile-demo.html gpu-profile.cdx.json
	find instrumentation exporter grafana tests -name __pycache__ -prune -exec rm -rf {} +

# The newest Python on PATH that can make environments; else the newest, with what it lacks installed or asked for.
$(VENV)/made.stamp:
	@$(QUIETLY)
	asked='$(PYTHON)'
	choose() {
	  python=
	  for candidate in $${asked:-$$(compgen -c python3. | grep -xE 'python3\.[0-9]+' | sort -Vru) python3 python}; do
	    "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
	    python=$${python:-$$candidate}
	    if "$$candidate" -c 'import ensurepip, venv; ensurepip.version()' 2>/dev/null; then python=$$candidate; return; fi
	  done
	  return 1
	}
	if ! choose && [ -n "$$python" -o -z "$$asked" ]; then
	  package=python3-venv
	  [ -z "$$python" ] || package=$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	    quietly "Reading Debian's list of packages" apt update
	    quietly "Installing $$package, to make a virtual environment" apt install -y $$package || true
	    choose || true
	  else
	    echo "No Python 3.11 or newer here can make virtual environments. Install what is missing, then run make again:" >&2
	    echo "  sudo apt-get install $$package" >&2
	    exit 1
	  fi
	fi
	if [ -z "$$python" ]; then
	  echo "No $${asked:-Python} of version 3.11 or newer on PATH: gpu-profile needs one (Debian 12, Ubuntu 24.04 or newer have it)." >&2
	  exit 1
	fi
	quietly "Making $(VENV) with $$("$$python" --version)" "$$python" -m venv --clear $(VENV)
	touch $@

$(VENV)/demo.stamp: pyproject.toml $(VENV)/made.stamp
	@$(QUIETLY)
	quietly "Installing gpu-profile into $(VENV)" $(PIP) install --editable .
	touch $@

$(VENV)/docs.stamp: pyproject.toml $(VENV)/made.stamp
	@$(QUIETLY)
	quietly "Installing the documentation's tools into $(VENV)" $(PIP) install --editable '.[docs]'
	touch $@

# Made of the Python that has PyTorch or CuPy. Its own packages stay what they are: what is added goes before them.
$(GPU_VENV)/made.stamp: pyproject.toml tests/gpu/needs.py
	@$(QUIETLY)
	python=
	for candidate in $(or $(PYTHON),python3 $$(compgen -c python3. | grep -xE 'python3\.[0-9]+' | sort -Vru)); do
	  "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
	  python=$${python:-$$candidate}
	  if "$$candidate" -c 'from importlib.util import find_spec as f; import sys; sys.exit(not (f("torch") or f("cupy")))'; then
	    python=$$candidate
	    break
	  fi
	done
	if [ -z "$$python" ]; then echo "No Python of version 3.11 or newer on PATH." >&2; exit 1; fi
	quietly "Making $(GPU_VENV) with $$("$$python" --version)" "$$python" -m venv --clear --without-pip $(GPU_VENV)
	site=$$($(GPU_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	"$$python" -c 'import sys; print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' > "$$site/beneath.pth"
	mapfile -t needs < <("$$python" tests/gpu/needs.py)
	if [ -d $(GPU_WHEELS) ]; then
	  pip=(env PYTHONPATH=$$(echo $(GPU_WHEELS)/pip-*.whl) $(GPU_VENV)/bin/python -m pip)
	  from=(--no-index --find-links $(GPU_WHEELS))
	else
	  pip=("$$python" -m pip --python $(GPU_VENV)/bin/python)
	  from=()
	fi
	quietly "Installing the tools of the GPU run into $(GPU_VENV)" \
	  "$${pip[@]}" --disable-pip-version-check install "$${from[@]}" "$${needs[@]}"
	touch $@

# Compiling all of what is installed takes half of that time, and most of it is never imported.
$(VENV)/frameworks.stamp: $(VENV)/dev.stamp
	@$(QUIETLY)
	quietly "Installing $(TORCH) into $(VENV)" $(PIP) install --no-compile $(TORCH)
	quietly "Installing $(filter-out $(TORCH),$(FRAMEWORKS)) into $(VENV)" $(PIP) install --no-compile $(FRAMEWORKS)
	touch $@

$(VENV)/dev.stamp: pyproject.toml $(VENV)/made.stamp
	@$(QUIETLY)
	quietly "Installing gpu-profile and its tools into $(VENV)" $(PIP) install --no-compile --editable '.[dev]'
	touch $@ $(VENV)/demo.stamp
