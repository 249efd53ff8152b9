# SPDX-License-Identifier: Apache-2.0
# The commands a newcomer types. CMake does the work; everything goes to build/.
JOBS ?= $(shell nproc)
# The Python that the package is built for and tested with, or off: the tests python and peers are then not run.
PYTHON ?= python3

.PHONY: qualify qualify-all test test-all test-hosts test-torch peers pictures build tool setup setup-tool setup-hosts \
  mutants compilers stats-proof canary-proof clean

# Set-up, build of the tool alone, main job: what this host has, every kernel checked in brief, and the shipped models
# qualified on it at their quick lengths: build/qualify.json, build/tileproof.lock, a verdict. About two minutes.
# Stopped, it goes on where it was. qualify-all: the whole matrix. QUALIFY_ARGS=-v.
qualify: MATRIX := --quick
qualify qualify-all: tool
	@echo "make $@: this host, every kernel in brief, then the models of models/$(if $(MATRIX), at quick lengths)"
	@build/tool/tileproof info | sed -n '1,/^math/p'
	@build/tool/tileproof check --quick
	@build/tool/tileproof qualify models/*.json $(MATRIX) --lock build/tileproof.lock --update --reason "make $@" \
	  --resume --save build/qualify.json $(QUALIFY_ARGS)

# Set-up, build, every quick test; ends in ctest's summary.
test: build
	@cd build/main && ctest --output-on-failure -j $(JOBS) -LE slow
ifeq ($(PYTHON),off)
	@echo "not run here: python, peers (PYTHON=off)"
endif

# What `make test` leaves out: sanitizers, emulation, other hosts, PyTorch, compilers, a sample of mutants.
test-all: setup-hosts build
	@cd build/main && ctest --output-on-failure -j $(JOBS) -L slow

# Of these, other hosts alone: CPUs without AVX-512 and without AVX2 by qemu-user, one core, a bare environment.
test-hosts: setup-hosts build
	@cd build/main && ctest --output-on-failure -j $(JOBS) -L hosts

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
	@build/peers/venv/bin/python bench/peers/run.py $(PEERS_ARGS)

build: setup
	@mkdir -p build
ifeq ($(PYTHON),off)
	@cmake -S . -B build/main -G Ninja -DTILEPROOF_PYTHON=OFF >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
else
	@python=$$($(PYTHON) scripts/python_env.py) && { \
	  cmake -S . -B build/main -G Ninja -U '_Python_*' -DTILEPROOF_PYTHON=ON -DPython_EXECUTABLE="$$python" >build/configure.log 2>&1 \
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

setup-hosts:
	@scripts/setup.sh hosts

# Plants bugs one at a time in a copy and asks the tests to find each.
mutants: setup
	python3 tests/mutants/run.py --jobs $(JOBS)

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
