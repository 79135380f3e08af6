PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup run test check lint types layers unit sim dist cluster bench soak clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

run: $(STAMP)
	$(BIN)/remesh run examples/tiny.toml --fresh --kill worker@20 --kill node@40 --report runs/tiny/report.json

test: check dist cluster

check: lint types layers
	$(BIN)/pytest tests/unit tests/sim

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy -p remesh

layers: $(STAMP)
	PYTHONPATH=.typing $(BIN)/lint-imports

unit dist cluster: $(STAMP)
	$(BIN)/pytest tests/$@

sim: $(STAMP)
	$(BIN)/python -m remesh.orchestrator.sim --seeds 2000

bench: $(STAMP)
	for script in benchmarks/*.py; do $(BIN)/python $$script --quick || exit 1; done

soak: $(STAMP)
	$(BIN)/pytest tests/cluster -m soak --override-ini addopts=--import-mode=importlib

clean:
	rm -rf .venv build *.egg-info
