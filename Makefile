.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup run test check lint types layers unit sim dist cluster bench docs soak clean

# Asked for its path, since a pyenv shim of that name may stand for nothing.
PYTHON ?= $(or $(shell python3.11 -c 'import sys; print(sys.executable)' 2>/dev/null),python3)
BIN := .venv/bin
STAMP := .venv/.installed

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## Make .venv with Remesh and its tools, in the versions of constraints.txt

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

run: $(STAMP) ## Train the example on two local nodes; kill a worker at step 20, a node at step 40
	$(BIN)/remesh run examples/tiny.toml --fresh --kill worker@20 --kill node@40 --report runs/tiny/report.json

test: $(STAMP) ## All tests, those on real nodes beside the others
	$(BIN)/python tests/support/lanes.py "$(MAKE) cluster" "$(MAKE) check" "$(MAKE) dist"

check: lint types layers ## The quick part: lint, types, layers, unit and 200 simulated seeds
	$(BIN)/pytest tests/unit tests/sim

lint: $(STAMP) ## Style and format, by ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## Types, by mypy
	$(BIN)/mypy -p remesh

layers: $(STAMP) ## Who may import whom, by import-linter
	PYTHONPATH=.typing $(BIN)/lint-imports

unit: $(STAMP) ## Pure tests, each under a second
	$(BIN)/pytest tests/unit

SEEDS ?= 20000

sim: $(STAMP) ## 20,000 seeds of the simulated cluster, or SEEDS=first..last
	$(BIN)/python -m remesh.orchestrator.sim --seeds $(SEEDS)

dist: $(STAMP) ## Tests with torch and gloo in several processes
	$(BIN)/pytest tests/dist

cluster: $(STAMP) ## Tests on real Ray nodes
	$(BIN)/pytest tests/cluster

docs: $(STAMP) ## Write the pages of docs/ that follow from the code
	$(BIN)/python docs/reference.py

soak: $(STAMP) ## 50 runs through schedules of 4 faults (make test: 4 of 2), ten minutes of hunger (20 s), 200 zombies (12), 20 generations of a rank (12), all pairs of layouts (five of each), 200 changed files (20), all mutants of the machines
	$(BIN)/pytest tests/unit/test_file_storm.py --file-changes 200
	$(BIN)/python tests/sim/mutants.py
	$(BIN)/pytest tests/cluster/test_schedules.py --schedules 50 --strikes 4 --timeout 600
	$(BIN)/pytest tests/dist/test_rank_zombie.py --zombies 200
	$(BIN)/pytest tests/dist/test_matrix.py --all-pairs
	$(BIN)/pytest tests/dist/test_many_generations.py --generations 20
	$(BIN)/pytest tests/cluster/test_agents.py -k short --hungry-s 600 --timeout 1200

bench: $(STAMP) ## Every benchmark, quickly; writes benchmarks/results
	for script in benchmarks/data.py benchmarks/collectives.py benchmarks/one_process.py benchmarks/step.py benchmarks/whole_run.py benchmarks/reshard.py benchmarks/vault.py benchmarks/planning.py benchmarks/pipeline.py benchmarks/attention.py benchmarks/control_plane.py benchmarks/reports.py benchmarks/starts.py; do $(BIN)/python $$script --quick || exit 1; done

clean: ## Remove .venv and what builds leave
	rm -rf .venv build dist *.egg-info
