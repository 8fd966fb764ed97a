# Two commands do everything from a fresh clone: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHARED ?= ../shared
OUT ?= demo-out
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
STAMP := .setup-$(shell cat pyproject.toml constraints.txt 2>/dev/null | cksum | cut -d' ' -f1)

.PHONY: help demo check-profile test docs lint setup validate plans pictures scoreboard peers calibration pools runs engines variation power own catalogs reference studies bench rooms thousand mutants wheel clean

help:                    ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

setup: $(VENV)/$(STAMP)  ## a virtual environment with all that the targets need

$(VENV)/$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt "torch==2.13.0"
	$(PIP) --constraint constraints.txt hatchling editables
	$(PIP) --constraint constraints.txt --no-build-isolation --editable ".[profile,serve,docs,test,dev]"
	$(BIN)/python -m compileall -q predictor profiler calibration reckon
	touch $@

demo: setup              ## profile this machine, calibrate, check, predict clusters
	$(BIN)/python tools/demo.py --out $(OUT)

check-profile: setup     ## how well this machine is profiled: repeatability, unseen steps (quiet machine)
	$(BIN)/python tools/check_profile.py --out profile-out

test: setup              ## all tests; under five minutes on two quiet cores
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

lint: setup              ## formatting, types, which room imports which
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --strict predictor
	$(BIN)/lint-imports

validate: setup          ## the published tables and the long checks, whole
	$(BIN)/python -m pytest -m long
	$(BIN)/reckon validate data/reference/training.csv --calibration kernels-only
	$(BIN)/reckon validate data/reference/training.csv --folds source
	$(BIN)/reckon validate data/reference/unseen.csv
	@test ! -d $(SHARED) || $(BIN)/python -m calibration.checks.sweep $(SHARED)
	@test ! -d $(SHARED) || $(BIN)/python -m calibration.checks.geography $(SHARED)/reference/variation/lowbw_v100_steps.csv

plans: setup             ## how good searched plans are: published winners, a measured sweep
	$(BIN)/python -m calibration.checks.winners data/reference/training.csv
	@test -d $(SHARED) || { echo "the measured sweep needs $(SHARED)"; exit 2; }
	$(BIN)/python -m calibration.checks.plans $(SHARED)

pictures: setup          ## retake the documentation's pictures of page and report; needs Chromium
	$(BIN)/python tools/page.py --pictures docs/images

docs: setup              ## the documentation as pages in site/, without the network
	$(BIN)/python tools/reference.py
	$(BIN)/zensical build

scoreboard: setup        ## regenerate the accuracy tables of docs/accuracy and of the README
	$(BIN)/python tools/scoreboard.py

peers: setup             ## install open peers from PyPI and print them beside reckon; half an hour
	$(BIN)/python -m tools.peers --shared $(SHARED) --out docs/accuracy/peers.md

runs: setup              ## refit only the run parameters of data/calibrations/default; minutes
	@test -d $(SHARED) || { echo "make runs needs $(SHARED)"; exit 2; }
	$(BIN)/python -m calibration.runs.fit $(SHARED)

calibration: setup       ## refit all that ships from the shared measurement sets; an hour
	@test -d $(SHARED) || { echo "make calibration needs $(SHARED)"; exit 2; }
	$(BIN)/python -m calibration.build $(SHARED) --out data/calibrations
	$(MAKE) engines variation power

pools: setup             ## refit links, and kernels of few points that lean on those of many; two minutes
	@test -d $(SHARED) || { echo "make pools needs $(SHARED)"; exit 2; }
	$(BIN)/python -m calibration.build $(SHARED) --out data/calibrations --few

engines: setup           ## refit the serving engines to published runs of inference; a quarter of an hour
	@test -d $(SHARED) || { echo "make engines needs $(SHARED)"; exit 2; }
	$(BIN)/python -m calibration.serving.fit $(SHARED)/reference/inference.csv \
	    $(SHARED)/bulk/inference/serving_runs.csv.gz --out data/calibrations/default

variation: setup         ## refit how steady steps of real runs are, and attention over packed documents (data/variation); seconds
	@test -d $(SHARED) || { echo "make variation needs $(SHARED)"; exit 2; }
	$(BIN)/python -m calibration.variation.population $(SHARED)/reference/variation/mlperf_step_ratios.csv.gz
	$(BIN)/python -m calibration.variation.documents $(SHARED)/reference/variation/attention_per_document_h100.csv

own: setup               ## how a few own runs help: sources left out in turn; writes data/own and its guide; minutes
	@test -d $(SHARED) || { echo "make own needs $(SHARED)"; exit 2; }
	$(BIN)/python -m calibration.checks.few_shot $(SHARED) --write
	$(BIN)/python -m calibration.checks.few_shot_serving $(SHARED) --write
	$(BIN)/python -m tools.own_runs
	$(BIN)/python -m tools.own_steps data/measurements/two-cores-*

power: setup             ## refit data/power/fitted.json to measured power; print what was left out
	@test -d $(SHARED) || { echo "make power needs $(SHARED)"; exit 2; }
	$(BIN)/python -m calibration.power.fit $(SHARED)
	$(BIN)/python -m calibration.checks.power $(SHARED)

catalogs: setup          ## rebuild data/*.csv from the shared fact tables
	@test -d $(SHARED) || { echo "make catalogs needs $(SHARED)"; exit 2; }
	$(BIN)/python tools/curate.py $(SHARED)
	$(BIN)/python tools/curate_technology.py $(SHARED)
	$(BIN)/python tools/curate_software.py $(SHARED)

reference: setup         ## rewrite docs/reference from the tables it is made from
	$(BIN)/python tools/reference.py

studies: setup           ## run the shipped studies; readings, tables and figures in studies/
	for name in $$($(BIN)/reckon study list); do $(BIN)/reckon study $$name --out studies || exit; done

thousand: setup          ## some thousand predictions of this tree against those of AGAINST=REV
	git worktree add --force --detach .thousand $(AGAINST)
	PYTHONPATH=$(CURDIR)/.thousand $(BIN)/python tools/thousand.py record $(CURDIR)/.thousand/before.json.gz --shared $(SHARED); \
	    $(BIN)/python tools/thousand.py record .thousand/after.json.gz --shared $(SHARED); \
	    $(BIN)/python tools/thousand.py compare .thousand/before.json.gz .thousand/after.json.gz; \
	    status=$$?; git worktree remove --force .thousand; exit $$status

mutants: setup           ## a sampled mutation check of predictor/; half an hour
	$(BIN)/python -m tools.mutants

bench: setup             ## speed, as ratios to a yardstick measured in the same run
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python tools/page.py

rooms: setup             ## which room imports which, lines of each; fails on cycles between files
	$(BIN)/python tools/rooms.py

wheel: setup             ## the wheel, in dist/
	$(BIN)/python -m build --wheel --outdir dist .

clean:                   ## remove what these targets made here, the environment too
	rm -rf $(VENV) .peers dist build site $(OUT) profile-out *.egg-info
