# SPDX-License-Identifier: Apache-2.0
# The commands a newcomer types. CMake does the work; everything goes to build/.
JOBS ?= $(shell nproc)
# The Python that the package is built for and tested with, or off: the tests python and peers are then not run.
PYTHON ?= python3
# ON: warnings of `make build` are errors, and `make test-all` leaves out another build by gcc for that.
TILEPROOF_WERROR ?= OFF

.PHONY: qualify qualify-all say-qualify test test-all test-hosts test-device test-torch peers engines pictures build tool setup \
  setup-tool setup-hosts setup-device setup-slow abi mutants compilers stats-proof canary-proof wheel clean

# Set-up, build of the tool alone, main job: what this host has, every kernel checked in brief, and the shipped models
# qualified on it at their quick lengths: build/qualify.json, build/qualify.lock, a verdict, and build/qualify.html, the
# report. Under three minutes.
# qualify-all: at all lengths; build/qualify-all.json, .lock and .html. A run that was stopped goes on where it was, unless the
# tool has been built anew since. QUALIFY_ARGS=-v prints every layer group; build/check.txt has the
# table of checks.
qualify: MATRIX := --quick
qualify qualify-all: say-qualify tool
	@build/tool/tileproof info | sed -n '1,/^math/p'
	@build/tool/tileproof check --quick >build/check.txt || { code=$$?; cat build/check.txt; exit $$code; }
	@grep -E '^not run here|passed, ' build/check.txt
	@rm -f build/$@.json; resume=; [ ! build/$@.lock.journal -nt build/tool/tileproof ] || resume=--resume; \
	build/tool/tileproof qualify models/*.json $(MATRIX) --lock build/$@.lock --update --reason "make $@" \
	  $$resume --save build/$@.json $(QUALIFY_ARGS); code=$$?; \
	[ ! -e build/$@.json ] || build/tool/tileproof report $$(ls build/$@.json build/$@.lock 2>/dev/null) -o build/$@.html || exit; \
	exit $$code

say-qualify:
	@echo "Builds the tool, checks every kernel of this host in brief, then runs the"
	@echo "attention of each shipped model: under three minutes at the quick lengths of"
	@echo "'make qualify', ten and more at all lengths of 'make qualify-all'."

# Set-up, build, every quick test; ends in ctest's summary.
test: build
ifeq ($(PYTHON),off)
	@echo "not run here: python, peers (PYTHON=off)"
endif
	@cd build/main && ctest --output-on-failure -j $$(($(JOBS) + 2)) -LE slow # some of them mostly wait

# What `make test` leaves out: sanitizers, emulation, other hosts, an OpenCL device, PyTorch, compilers, a sample of mutants.
test-all: build setup-slow
	@cd build/main && ctest --output-on-failure -j $(JOBS) -L slow

# Of these, other hosts alone: CPUs without AVX-512 and without AVX2 by qemu-user, one core, a bare environment.
test-hosts: build setup-hosts
	@cd build/main && ctest --output-on-failure -j $(JOBS) -L hosts

# The OpenCL backend on PoCL, a real OpenCL on the CPU, and on oclgrind, which looks at every access. Says nothing about a GPU.
test-device: build setup-device
	@cd build/main && ctest --output-on-failure -L device

# The Python package with PyTorch, which is kept in the user's cache folder: up to 4.4 GB, once for all clones.
test-torch: setup
ifeq ($(PYTHON),off)
	@echo "not run here: test-torch (PYTHON=off)"
else
	@$(PYTHON) scripts/test_torch.py
endif

# Other libraries beside this one, on this host. PEERS_ARGS="--match causal --quick", or --help.
peers: build
	@JOBS=$(JOBS) python3 bench/peers/setup.py
	@PYTHONPATH=build/main/python build/peers/venv/bin/python bench/peers/run.py $(PEERS_ARGS)

# The shipped models by every engine of this host, in one table. ENGINES_ARGS="--quick models/gemma-2-9b.json", or --help.
engines: build
	@JOBS=$(JOBS) python3 bench/peers/setup.py onnxruntime openvino torch vllm ggml
	@python3 scripts/engines.py $(ENGINES_ARGS)

CONFIGURE = cmake -S . -B build/main -G Ninja -DTILEPROOF_WERROR=$(TILEPROOF_WERROR)
build: setup
	@mkdir -p build
ifeq ($(PYTHON),off)
	@$(CONFIGURE) -DTILEPROOF_PYTHON=OFF >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
else
	@python=$$($(PYTHON) scripts/python_env.py) && { \
	  $(CONFIGURE) -U '_Python_*' -DTILEPROOF_PYTHON=ON -DPython_EXECUTABLE="$$python" >build/configure.log 2>&1 \
	  || { cat build/configure.log; exit 1; }; }
endif
	@cmake --build build/main -j $(JOBS)

# The tool alone: no tests, no Python.
tool: setup-tool
	@mkdir -p build
	@cmake -S . -B build/tool -G Ninja -DTILEPROOF_TESTS=OFF >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	@cmake --build build/tool --target tileproof_cli -j $(JOBS)

setup:
	@scripts/setup.sh

setup-tool:
	@scripts/setup.sh tool

setup-hosts: setup
	@scripts/setup.sh hosts

setup-device: setup
	@scripts/setup.sh device

setup-slow: setup
	@scripts/setup.sh slow

# The Python package as it would be published, tried in an empty environment: build/wheel.
wheel: setup
	@python3 scripts/wheel.py

# Stores the ABI of this build in tests/abi, which the test `abi` compares with. On purpose: CONTRIBUTING.md, API and deprecation.
abi: build setup-slow
	@python3 scripts/abi.py build/main --renew

# Plants bugs one at a time in a copy and asks the tests to find each. MUTANTS_ARGS=--changed: those of files that changed.
mutants: setup
	python3 tests/mutants/run.py --jobs $(JOBS) --record $(MUTANTS_ARGS)

# gcc and clang, warnings as errors, and a build without pthreadpool.
compilers: setup
	scripts/compilers.sh

# How often a verdict of `bench --against` is wrong on this host: minutes, and an idle host is better.
stats-proof: build
	python3 scripts/stats_proof.py build/main/tileproof $(TRIALS)

# The same of `canary --against`: this tool against its own library, and slowed by a drill.
canary-proof: build
	python3 scripts/canary_proof.py build/main/tileproof build/main/libtileproof.so $(RUNS)

clean:
	rm -rf build

# The pictures of the README, from this host's own figures (and those of `make peers`, where they are); minutes.
pictures: build
	scripts/pictures.sh build/main/tileproof docs/pictures
