# What can be done here: `make help`. All that is made lies in .venv and .cache; nothing outside this folder is touched.

RUN    ?= quickstart# what `make run` starts: metaprior $(RUN)
EXTRAS ?= dev#   extras to install: make setup EXTRAS=dev,rl
JOBS   ?= 2#     test processes
ARGS   ?=#       passed on to pytest: make test ARGS="tests/test_families.py -x"

PYTHONS := python3 python3.13 python3.12 python3.11
VENV    := .venv
PY      := $(VENV)/bin/python
STAMP   := $(VENV)/.installed
READY   := $(CURDIR) $(EXTRAS)
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1# pyright asks for updates unless told not to

# The stamp says where and with which extras the install was done. A folder that was copied or moved brings an environment
# that still points to its old place, and an upgrade of Python may leave one without interpreter: then it is done again.
ifneq ($(shell [ -x $(PY) ] && cat $(STAMP) 2>/dev/null),$(READY))
$(shell rm -f $(STAMP))
endif

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all check docs format clean

help:  ## list what can be done
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

setup: $(STAMP)  ## install everything into .venv, when something changed

# Whatever an interrupted attempt left in .venv is kept if it is a working environment, and cleared otherwise.
$(STAMP): pyproject.toml constraints.txt
	@enough='import sys; sys.exit(sys.version_info < (3, 11))'; \
	if ! $(PY) -c "import pip, sys; sys.exit(sys.prefix == sys.base_prefix or sys.version_info < (3, 11))" 2>/dev/null; then \
	  python=; for p in $(PYTHONS); do if $$p -c "$$enough" >/dev/null 2>&1; then python=$$p; break; fi; done; \
	  if [ -z "$$python" ]; then \
	    echo "metaprior needs Python 3.11 or newer; none was found among: $(PYTHONS)." >&2; \
	    echo "Install one (from python.org or with your system's packages), then run make again." >&2; exit 1; \
	  fi; \
	  echo "creating $(VENV) with $$($$python --version)"; \
	  $$python -m venv --clear $(VENV) || { rm -rf $(VENV); \
	    echo "$$python cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; \
	fi
	@echo "installing metaprior[$(EXTRAS)] and what it needs into $(VENV)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	@echo "$(READY)" > $@

run: setup  ## start the demonstration
	$(VENV)/bin/metaprior $(RUN)

test: setup  ## run the quick tests
	$(PY) -m pytest -q -n $(JOBS) --dist loadfile -m "not slow and not device" --durations=40 --durations-min=5 $(ARGS)

test-all: setup  ## run the slow tests too, all compiled as users do
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 XLA_FLAGS= $(PY) -m pytest -q -n $(JOBS) --dist loadfile -m "not device" $(ARGS)

check: setup  ## check lint, formatting and types
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m pyright

docs: setup  ## build the documentation into .cache/site; any warning, broken link or undocumented name fails
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS),docs]"
	$(PY) -m pytest -q tests/test_docs.py
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

format: setup  ## format the code and mend what ruff can mend
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

clean:  ## remove .venv and everything else that was made here
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
