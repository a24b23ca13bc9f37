# The two commands of the README: `make demo` and `make test`. Both set up everything they need.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: setup system demo test test-core test-long newest test-tensorflow test-keras2 test-jax lint check-types graphs docs site package bench chunks integrations paper paper-long mutations fuzz faults screenshots gpu hollow hollow-truth models named-models foreign truth ablation torch-versions clean

setup: $(VENV)/.ready

# What a user of the command line needs, and no more.
$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	touch $@

# What the tests need besides.
$(VENV)/.ready: $(VENV)/.core
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[all-solvers,dev]'
	touch $@

# What the tests need from the system: glpsol, one of the two ways to run GLPK, a browser for the pages, zsh and fish for
# their completion, node for the exporter in docs/examples, and a C++ compiler for PyTorch's Inductor.
system:
	@{ command -v glpsol && command -v chromium; } >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    apt-get update -qq && \
	    apt-get install -y -qq --no-install-recommends glpk-utils=5.0-1 chromium fonts-dejavu-core >/dev/null; } || \
	  { echo 'The tests need glpsol and chromium (Debian: apt-get install glpk-utils chromium).' >&2; exit 1; }
	@{ command -v zsh && command -v fish; } >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends zsh fish >/dev/null; } || \
	  { echo 'The tests need zsh and fish (Debian: apt-get install zsh fish).' >&2; exit 1; }
	@command -v node >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends nodejs >/dev/null; } || \
	  { echo 'The tests need node: install nodejs (Debian: apt-get install nodejs).' >&2; exit 1; }
	@command -v g++ >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends g++ >/dev/null; } || \
	  { echo 'The tests need a C++ compiler (Debian: apt-get install g++).' >&2; exit 1; }

demo: $(VENV)/.core
	$(BIN)/remat solve graphs/vgg16.json --budget 80%
	$(BIN)/remat check vgg16.plan.json
	$(BIN)/remat show vgg16.plan.json

lint: setup
	$(BIN)/ruff check remat_cli tests benchmarks docs
	$(BIN)/ruff format --check remat_cli tests benchmarks docs
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: setup system lint
	$(BIN)/python -m pytest -n 2

# The tests with transformers, accelerate, lightning, peft and trl, in an environment of their own; of tools that need
# CUDA or other versions there are only the sources.
integrations: build/integrations/.ready
	build/integrations/bin/python -m pytest -n 0 -W default tests/integrations

build/integrations/.ready: pyproject.toml constraints.txt tests/integrations/requirements.txt tests/integrations/sources.txt
	$(PYTHON) -m venv build/integrations
	build/integrations/bin/python -m pip install -q -c constraints.txt -r tests/integrations/requirements.txt \
	  -e '.[torch]' pytest pytest-timeout pytest-xdist
	build/integrations/bin/python -m pip install -q --no-deps -r tests/integrations/sources.txt
	touch $@

# The tests with JAX, in an environment of its own.
test-jax: build/jax/.ready
	build/jax/bin/python -m pytest -n 2 tests/jax_frontend

build/jax/.ready: pyproject.toml constraints.txt constraints-jax.txt tests/jax_frontend/requirements.txt
	$(PYTHON) -m venv build/jax
	build/jax/bin/python -m pip install -q -c constraints.txt -c constraints-jax.txt \
	  -r tests/jax_frontend/requirements.txt -e '.[jax]' pytest pytest-timeout pytest-xdist
	touch $@

# The tests with TensorFlow, in an environment of their own: it does not go together with PyTorch's.
test-tensorflow: build/tensorflow/.ready
	OMP_NUM_THREADS=1 build/tensorflow/bin/python -m pytest -n 0 -W default tests/tensorflow_frontend

# tensorflow-cpu is what the extra remat[tensorflow] asks for, without CUDA (1.3 GB instead of 4).
build/tensorflow/.ready: pyproject.toml constraints-tensorflow.txt
	$(PYTHON) -m venv build/tensorflow
	build/tensorflow/bin/python -m pip install -q -c constraints-tensorflow.txt tensorflow-cpu -e . \
	  pytest pytest-timeout pytest-xdist
	touch $@

# The tests with TensorFlow 2.15 and Keras 2.
test-keras2: build/keras2/.ready
	OMP_NUM_THREADS=1 build/keras2/bin/python -m pytest -W default tests/keras2_frontend

build/keras2/.ready: pyproject.toml constraints-keras2.txt tests/keras2_frontend/requirements.txt
	$(PYTHON) -m venv build/keras2
	build/keras2/bin/python -m pip install -q -c constraints-keras2.txt -r tests/keras2_frontend/requirements.txt -e .
	touch $@

# What `make test` runs, without the tests that need a program of the system.
test-core: setup lint
	$(BIN)/python -m pytest -n 2 -m 'not system'

# The 28 long tests that `make test` and CI leave out: LONG in tests/conftest.py.
test-long: setup system
	$(BIN)/python -m pytest -n 2 --long

# What users get: the newest release of everything that its range in pyproject.toml allows, instead of constraints.txt, with
# the tests that meet what packages print, warn of and answer. torch alone stays as it is there, because newer ones come with
# CUDA (5 GB): make torch-versions tries those. Prints what constraints.txt does not have yet.
NEWEST ?= tests/base tests/cli tests/frontends/test_onnx.py tests/graph tests/milp tests/packaging tests/reports tests/solvers \
  tests/strategies tests/web tests/test_api.py
newest: system
	$(PYTHON) -m venv build/newest
	grep '^torch==' constraints.txt > build/newest/torch.txt
	build/newest/bin/python -m pip install -q --upgrade --upgrade-strategy eager -c build/newest/torch.txt \
	  -e '.[all-solvers,dev]'
	build/newest/bin/python -m pip freeze --exclude-editable | grep -vxFf constraints.txt || true
	build/newest/bin/python -m pytest -n 2 $(NEWEST)

# Makes every file in graphs/ again from the architectures in remat_cli/zoo.
graphs: setup
	$(BIN)/python docs/generate_graphs.py graphs

# Makes the command reference, the tables and the figures in docs/ again.
docs: setup
	$(BIN)/python docs/generate.py

# The pages as a site with search, in build/site/public. A broken link, to a page, a file or a heading, is an error.
site: build/site/.ready
	rm -rf build/site/pages
	mkdir build/site/pages
	git ls-files -z '*.md' docs/examples docs/figures docs/images docs/notebooks graphs 'benchmarks/*.csv' 'benchmarks/*.svg' \
	  schemas action.yml requirements-check.txt | xargs -0 cp --parents -t build/site/pages
	cp docs/zensical.toml build/site
	build/site/bin/zensical build --clean --strict --config-file build/site/zensical.toml

build/site/.ready: docs/requirements.txt
	$(PYTHON) -m venv build/site
	build/site/bin/python -m pip install -q -r docs/requirements.txt
	touch $@

# Wheel and source distribution as they would be uploaded, in dist/, with the checks of a package index.
package: build/package/.ready
	rm -rf dist
	build/package/bin/python -m build --outdir dist
	build/package/bin/twine check --strict dist/*

build/package/.ready: Makefile constraints.txt
	$(PYTHON) -m venv build/package
	build/package/bin/python -m pip install -q -c constraints.txt build twine==7.0.0
	touch $@

# Public graphs to measure besides the project's own, where they lie beside it.
GRAPHS ?= $(wildcard ../shared/graphs/*/*.json)

bench: setup
	$(BIN)/python -m benchmarks $(if $(GRAPHS),--graphs $(GRAPHS))

# Regions in parts beside chunks by hand, of PyTorch and of Inductor, whose C++ compiler it needs: half an hour.
chunks: setup
	$(BIN)/python -m benchmarks splitting.chunks $(ASKED)

# The published tables and figures, made again: benchmarks/paper/README.md. Below an hour on one core.
# After an interruption, PAPER=--resume goes on where it was.
paper: setup
	$(BIN)/python -m benchmarks.paper $(PAPER)

# The ILP of the paper itself and the search for what `make paper` leaves open, a quarter of an hour for each of 170 cells: a
# night on two cores (JOBS=2). It may be interrupted: finished cells are in RESULTS, and the same command goes on. A Dask
# cluster spreads it over machines: make paper-long LONG='--dask tcp://host:8786'; LONG='--limit 3600' gives the paper's hour.
paper-long: setup
	$(BIN)/python -m benchmarks.paper.long $(if $(RESULTS),--results $(RESULTS)) $(if $(findstring --dask,$(LONG)),,--jobs $(JOBS)) $(LONG)

# Plants mistakes in a copy of the package, one by one, and says which test catches each: about twenty minutes on one core.
mutations: setup
	$(BIN)/python -m benchmarks.mutations

# Random cases with a seed against truth that shares no code with remat: docs/campaigns.md. PART=1 is the long run.
SEED    ?= 1
MINUTES ?= 10
JOBS    ?= 1
CAMPAIGN = PYTHONPATH=tests:. $(BIN)/python -m campaigns
CHOSEN   = --seed $(SEED) --jobs $(JOBS) $(if $(PART),--part $(PART),--minutes $(MINUTES)) \
  $(if $(ONLY),--only $(ONLY)) $(if $(RESULTS),--results $(RESULTS))
fuzz: setup system
	$(CAMPAIGN) fuzz $(CHOSEN)

faults: setup system
	$(CAMPAIGN) faults $(CHOSEN)

# The pictures of pages in the README, made by the commands that a user would type.
SHOOT := chromium --headless --no-sandbox --disable-dev-shm-usage --hide-scrollbars --no-proxy-server \
  --virtual-time-budget=20000
screenshots: setup system
	mkdir -p build docs/images
	$(BIN)/remat solve graphs/vgg16.json --budget 16GB -o build/vgg16.plan.json --quiet
	cd build && $(abspath $(BIN))/remat show vgg16.plan.json --format html -o vgg16.html
	$(BIN)/remat compare graphs/vgg16.json --budgets 50%:100%:5% --strategies optimal,chen-sqrt,chen-greedy,twremat,min-cut \
	  --format html -o build/compare.html
	$(SHOOT) --window-size=1100,1060 --screenshot=docs/images/plan.png file://$(CURDIR)/build/vgg16.html
	$(SHOOT) --window-size=1100,860 --screenshot=docs/images/compare.png file://$(CURDIR)/build/compare.html

# On a machine with a CUDA device: at most ten minutes, no network. The Python needs PyTorch 2.11 to 2.13, built for CUDA;
# without a solver beside it plans are those of dtr. Results go to benchmarks/torch/results/gpu.json and gpu.md.
GPU_PYTHON ?= $(PYTHON)
GPU_MINUTES ?= 9
gpu:
	PYTHONPATH=$(CURDIR) $(GPU_PYTHON) -m benchmarks.torch.gpu
	PYTHONPATH=$(CURDIR) $(GPU_PYTHON) -m benchmarks.torch.compiled --device cuda --minutes $(GPU_MINUTES)

# The memory parts of that without a GPU; GPU_PYTHON has to have a CUDA build of PyTorch (5 GB) with what remat needs.
hollow:
	PYTHONPATH=$(CURDIR) HOLLOW_WORKSPACE=67108864 $(GPU_PYTHON) -m benchmarks.torch.hollow \
	  $(GPU_PYTHON) -m benchmarks.torch.gpu --parts fit,peaks,batch

# What `remat fits` predicts for a card beside what training takes from it there, in an environment that also has the packages
# of benchmarks/models/requirements.txt. ASKED names the models.
hollow-truth:
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR) $(GPU_PYTHON) -m benchmarks.torch.hollow $(GPU_PYTHON) -m benchmarks.fits --cuda $(ASKED)

# Real models of four libraries, in an environment of their own: benchmarks/models. About an hour on one core; a later run only does
# what is missing. ASKED narrows it: make models ASKED='--only clip --again'.
models: build/models-venv/.ready
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR) build/models-venv/bin/python -m benchmarks.models $(ASKED)

# Models by name, as `remat fits` takes them, of the libraries in that environment.
named-models: build/models-venv/.ready
	PYTHONPATH=$(CURDIR) build/models-venv/bin/python -m pytest -n 0 -W default tests/named_models

# A hundred models that are not in that suite, with a loss in the loop: three quarters of an hour on one core.
foreign: build/models-venv/.ready
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR) build/models-venv/bin/python -m benchmarks.models --foreign --limit 60 $(ASKED)

build/models-venv/.ready: constraints.txt benchmarks/models/requirements.txt
	$(PYTHON) -m venv build/models-venv
	build/models-venv/bin/python -m pip install -q -c constraints.txt -r benchmarks/models/requirements.txt \
	  -e '.[torch]' pytest pytest-timeout pytest-xdist
	touch $@

# What `remat fits`, accelerate and torch-kitsune predict for the models of that suite, and what training them is measured to
# take: about an hour on one core; a later run only does what is missing.
truth: build/fits-venv/.ready
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR) build/fits-venv/bin/python -m benchmarks.fits $(ASKED)

build/fits-venv/.ready: constraints.txt benchmarks/models/requirements.txt benchmarks/fits/requirements.txt
	$(PYTHON) -m venv build/fits-venv
	build/fits-venv/bin/python -m pip install -q -c constraints.txt -r benchmarks/fits/requirements.txt -e '.[torch]'
	touch $@

# The frontends' tests on the other versions of PyTorch that are supported; by network, and as it comes: with CUDA, 5 GB each.
# Below 2.13, those of plans for Inductor are left out, which are refused there.
TORCH_VERSIONS ?= 2.11.0 2.12.1 2.14.1 2.15.0
torch-versions:
	for v in $(TORCH_VERSIONS); do \
	  $(PYTHON) -m venv build/torch-$$v && \
	  sed "s/^torch==.*/torch==$$v/; /^setuptools==/d" constraints.txt > build/torch-$$v/constraints.txt && \
	  build/torch-$$v/bin/python -m pip install -q -c build/torch-$$v/constraints.txt -e '.[dev]' && \
	  build/torch-$$v/bin/python -m pytest -q tests/frontends || exit 1; \
	done

# What every stage, and the constants of every module, of the search are worth. All of it takes hours; what is measured already
# is kept, so narrow it: make ablation ASKED='--only prices annealing'.
ablation: setup
	$(BIN)/python -m benchmarks.ablation $(ASKED)

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
