# The two commands of a fresh machine are `make demo` and `make test`; `make help` lists the rest.
# Everything lives in .venv; paths are relative, so a checkout below a folder with spaces works.
PYTHON ?= python3
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help demo test bench check docs install clean

help:
	@echo "make demo      create .venv, install, train a small CNN on MNIST and reload it"
	@echo "make test      create .venv, install, static checks and all tests (those of the report need Chromium)"
	@echo "make bench     create .venv, install the peers, measure beside them (ARGS: see --help)"
	@echo "make check     static checks only: ruff, mypy, import layers, sizes"
	@echo "make docs      build the documentation into site/"
	@echo "make install   create .venv and install with all developer tools"
	@echo "make clean     remove .venv and everything generated"
	@echo "Variables: PYTHON (python3), TORCH_INDEX, ARGS (flags of demo and bench, arguments of pytest)"

demo:
	@scripts/install core
	@echo "==> examples/mnist/train_mnist.py $(ARGS)"
	@.venv/bin/python examples/mnist/train_mnist.py $(ARGS)
	@echo "==> examples/mnist/reload_and_predict.py"
	@.venv/bin/python examples/mnist/reload_and_predict.py

test:
	@scripts/install clients
	@scripts/check
	@scripts/test $(ARGS)
	@scripts/install paddle
	@scripts/test-paddle
	@scripts/test-browser --if-found

bench:
	@scripts/install bench
	@.venv/bin/python -m benchmarks $(ARGS)

check:
	@scripts/install dev
	@scripts/check

docs:
	@scripts/install dev
	@scripts/docs

install:
	@scripts/install dev

clean:
	rm -rf .venv .venv-paddle site build examples/*/out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf src/*.egg-info packaging/*/build packaging/*/*.egg-info
