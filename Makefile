# nctd: one non-recursive Makefile. `make help` lists the targets, `make` prints what it chose.
VERSION  := 0.1.0
PREFIX   ?= /usr/local
DESTDIR  ?=
PYTHON   ?= /usr/bin/python3
CUDA     ?= auto
CUDA_ARCHS ?= 80 90a
SANITIZE ?=
V        ?= 0
WERROR   ?= 0

empty :=
comma := ,
space := $(empty) $(empty)
BUILD ?= build$(if $(SANITIZE),/$(subst $(comma),-,$(SANITIZE)))

ifeq ($(V),0)
Q := @
say = @printf '  %-8s %s\n' $(1) $(2)
else
Q :=
say = @:
endif

# ---- what is there -------------------------------------------------------------------------------------------------
ifeq ($(origin CC),default)
CC := gcc
endif
NVCC ?= $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
ifeq ($(CUDA),auto)
HAVE_CUDA := $(if $(NVCC),yes,no)
else ifeq ($(CUDA),yes)
ifeq ($(NVCC),)
$(error CUDA=yes but there is no nvcc on PATH or in /usr/local/cuda/bin: install the CUDA Toolkit or say CUDA=no)
endif
HAVE_CUDA := yes
else
HAVE_CUDA := no
endif

# ---- flags ---------------------------------------------------------------------------------------------------------
WARN := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Wundef
ifeq ($(WERROR),1)
WARN += -Werror
endif
OPT ?= -O2 -g
CFLAGS_ALL = -std=gnu11 $(OPT) $(WARN) -fPIC -fvisibility=hidden -ffp-contract=off -fno-strict-aliasing \
	-D_GNU_SOURCE -DNCT_VERSION='"$(VERSION)"' $(SAN) $(CFLAGS)
LDFLAGS_ALL = -Wl,-z,relro,-z,now -Wl,--no-undefined $(SAN) $(LDFLAGS)
ifneq ($(SANITIZE),)
SAN := -fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=undefined
LDFLAGS_ALL := -Wl,-z,relro,-z,now $(SAN) $(LDFLAGS)
endif
HARDEN := -fstack-protector-strong $(if $(SANITIZE),,-D_FORTIFY_SOURCE=2)

INC_kernels := -Ikernels
INC_client  := -Iclient
INC_cli     := -Iclient -Iclient/cli -Ikernels
INC_daemon  := -Idaemon -Iclient -Ikernels
pc = $(shell pkg-config $(1) 2>/dev/null)
CFLAGS_daemon := $(call pc,--cflags libuv libzmq jansson libsodium libmicrohttpd)
CFLAGS_client := $(call pc,--cflags libzmq jansson)
CFLAGS_cli    := $(call pc,--cflags libzmq jansson sndfile libpng)
LIBS_layer  := -lm -lpthread
LIBS_model  := $(call pc,--libs jansson libsodium)
LIBS_client := $(call pc,--libs libzmq jansson) -lpthread
LIBS_cli     = $(call pc,--libs sndfile libpng) $(LIBS_client) $(LIBS_model) $(LIBS_layer)
LIBS_daemon  = $(call pc,--libs libuv libzmq jansson libsodium libmicrohttpd) $(LIBS_layer)

ifeq ($(HAVE_CUDA),yes)
CUDA_HOME  := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
GENCODE    := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) \
	-gencode arch=compute_80$(comma)code=compute_80
NVCCFLAGS  := -O3 -std=c++17 -lineinfo -Xcompiler -fPIC$(comma)-fvisibility=hidden -Ikernels --fmad=true -DNCT_CUDA
# 44 MB of kernels become 11; nvcc before 12.8 does not know the flag.
NVCCFLAGS  += $(shell $(NVCC) --help 2>/dev/null | grep -q compress-mode && echo --compress-mode=size)
CFLAGS_CUDA := -DNCT_CUDA -I$(CUDA_HOME)/include
LIBS_layer += -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lstdc++
endif

# ---- the rooms -----------------------------------------------------------------------------------------------------
SRC_layer  := $(filter-out kernels/model%.c kernels/safetensors%.c,$(wildcard kernels/*.c)) $(wildcard kernels/cpu/*.c)
SRC_cuda   := $(if $(filter yes,$(HAVE_CUDA)),$(wildcard kernels/cuda/*.cu))
SRC_model  := $(wildcard kernels/model*.c kernels/safetensors*.c)
SRC_client := $(wildcard client/*.c)
SRC_cli    := $(filter-out client/cli/main.c,$(wildcard client/cli/*.c))
SRC_daemon := $(filter-out daemon/main.c $(if $(filter no,$(HAVE_CUDA)),daemon/engine_cuda%.c),$(wildcard daemon/*.c))
SRC_unit   := $(wildcard tests/unit/test_*.c)

o = $(patsubst %,$(BUILD)/%.o,$(1))
OBJ_layer  := $(call o,$(SRC_layer)) $(call o,$(SRC_cuda))
LIB_layer  := $(BUILD)/libnct_layer.a
LIB_model  := $(BUILD)/libnct_model.a
LIB_client := $(BUILD)/libnct.a
LIB_cli    := $(BUILD)/libcli.a
LIB_daemon := $(BUILD)/libdaemon.a
SO_layer   := $(BUILD)/libnct_layer.so.0
SO_client  := $(BUILD)/libnct.so.0
UNIT       := $(patsubst tests/unit/%.c,$(BUILD)/unit/%,$(SRC_unit))

.PHONY: all help deps demo test unit lint tidy bench bench-daemon bench-latency soak fuzz install clean libs print generated check-generated
.DEFAULT_GOAL := all

all: print libs $(BUILD)/nctd $(BUILD)/nct ## build everything (the default)
libs: $(SO_layer) $(SO_client)

print:
	@printf 'nctd %s\n  CUDA     %s%s\n  compiler %s\n  flags    %s\n  build    %s\n' '$(VERSION)' '$(HAVE_CUDA)' \
	  '$(if $(filter yes,$(HAVE_CUDA)), ($(NVCC); architectures $(CUDA_ARCHS) + PTX 80))' "$$($(CC) --version | head -1)" '$(OPT) $(SAN)' '$(BUILD)'

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'
	@printf '\n  SANITIZE=address,undefined|thread  CUDA=auto|yes|no  CUDA_ARCHS="80 90a"  V=1  DESTDIR=  PREFIX=\n'

# ---- compiling -----------------------------------------------------------------------------------------------------
# The CPU variants: one file name suffix a variant (kernels/cpu/*_avx512.c, *_avx2.c); everything else is baseline.
$(BUILD)/kernels/cpu/%.c.o: CFLAGS_UNIT = -O3 $(if $(findstring _avx512,$*),-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c,$(if $(findstring _avx2,$*),-mavx2 -mfma -mf16c))
$(BUILD)/kernels/%.c.o: INC = $(INC_kernels) $(CFLAGS_CUDA)
$(BUILD)/client/%.c.o: INC = $(INC_client) $(CFLAGS_client)
$(BUILD)/client/cli/%.c.o: INC = $(INC_cli) $(CFLAGS_cli)
$(BUILD)/daemon/%.c.o: INC = $(INC_daemon) $(CFLAGS_daemon) $(CFLAGS_CUDA) $(if $(FAULTS),-DNCT_FAULTS)
$(BUILD)/daemon/page.c.o: $(wildcard daemon/page/*)
$(BUILD)/tests/%.c.o: INC = $(INC_daemon) $(INC_cli) -Itests $(CFLAGS_daemon) $(CFLAGS_cli) $(CFLAGS_CUDA)

# What a build folder was made with: another choice makes everything in it anew.
CHOICES := $(CC) $(HAVE_CUDA) $(CUDA_ARCHS) $(OPT) $(SANITIZE) $(CFLAGS) $(FAULTS) $(VERSION)
$(BUILD)/choices: $(if $(subst x$(CHOICES)x,,x$(file <$(BUILD)/choices)x),again)
	@mkdir -p $(@D)
	@old=$$(test -e $@ || echo 2000-01-01); printf '%s' '$(CHOICES)' > $@; [ -z "$$old" ] || touch -d $$old $@
again:
.PHONY: again

$(BUILD)/%.c.o: %.c $(BUILD)/choices
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS_ALL) $(HARDEN) $(CFLAGS_UNIT) $(INC) -MMD -MP -c $< -o $@
# *_sm90.cu run on Hopper alone; conv_mma and conv_narrow need sm_80; the others also carry PTX for older cards.
GENCODE_cu = $(if $(filter %_sm90.cu,$(1)),-gencode arch=compute_90a$(comma)code=sm_90a,$(GENCODE) \
	$(if $(findstring conv_mma,$(1))$(findstring conv_narrow,$(1)),,-gencode arch=compute_75$(comma)code=compute_75))
$(BUILD)/%.cu.o: %.cu $(BUILD)/choices
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVCCFLAGS) $(call GENCODE_cu,$<) -MD -MP -c $< -o $@

$(LIB_layer): $(OBJ_layer)
$(LIB_model): $(call o,$(SRC_model))
$(LIB_client): $(call o,$(SRC_client))
$(LIB_cli): $(call o,$(SRC_cli))
$(LIB_daemon): $(call o,$(SRC_daemon))
$(BUILD)/%.a:
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(SO_layer): $(OBJ_layer) kernels/libnct_layer.map
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-soname,libnct_layer.so.0 -Wl,--version-script=kernels/libnct_layer.map $(OBJ_layer) $(LDFLAGS_ALL) $(LIBS_layer) -o $@
	$(Q)ln -sf libnct_layer.so.0 $(BUILD)/libnct_layer.so
$(SO_client): $(call o,$(SRC_client)) client/libnct.map
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-soname,libnct.so.0 -Wl,--version-script=client/libnct.map $(filter %.o,$^) $(LDFLAGS_ALL) $(LIBS_client) -o $@
	$(Q)ln -sf libnct.so.0 $(BUILD)/libnct.so

$(BUILD)/nctd: $(call o,daemon/main.c) $(LIB_daemon) $(LIB_client) $(LIB_model) $(LIB_layer)
	$(call say,LD,$@)
	$(Q)$(CC) $^ $(LDFLAGS_ALL) $(LIBS_daemon) $(LIBS_model) -o $@
$(BUILD)/nct: $(call o,client/cli/main.c) $(LIB_cli) $(LIB_client) $(LIB_model) $(LIB_layer)
	$(call say,LD,$@)
	$(Q)$(CC) $^ $(LDFLAGS_ALL) $(LIBS_cli) -o $@

# Unit tests: cmocka, each linked with everything but the two mains.
$(BUILD)/unit/%: $(BUILD)/tests/unit/%.c.o $(LIB_daemon) $(LIB_cli) $(LIB_client) $(LIB_model) $(LIB_layer)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $^ $(LDFLAGS_ALL) $(LIBS_cli) $(LIBS_daemon) -lcmocka -o $@
unit: $(UNIT) ## build the unit tests

# ---- fuzzing ---------------------------------------------------------------------------------------------------------
# tests/fuzz/fuzz_NAME.c with clang and libFuzzer; FUZZ_SRC_NAME are the sources that are instrumented with it. Each runs
# FUZZ_SECONDS on a copy of its seeds, tests/fuzz/corpus/NAME; what it finds lies in $(BUILD)/fuzz/NAME.findings.
FUZZ_SECONDS ?= 60
FUZZ_CC      ?= clang
FUZZ_FLAGS   := -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1 -g
FUZZ_SRC_wire        := client/wire.c client/error.c
FUZZ_SRC_conf        := $(wildcard daemon/config*.c) daemon/ini.c kernels/model_settings.c kernels/safetensors_text.c client/wire.c client/error.c
FUZZ_SRC_safetensors := $(SRC_model) $(filter kernels/layer%,$(SRC_layer))
# What is linked beside them as it stands: the layer's checks name the CPU backend, whose CPU tests clang 14 cannot read.
FUZZ_OBJ_safetensors := $(call o,$(filter-out kernels/layer%,$(SRC_layer)))
FUZZ         := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_CFLAGS   = -std=gnu11 -D_GNU_SOURCE -DNCT_VERSION='"$(VERSION)"' -ffp-contract=off -fno-strict-aliasing $(FUZZ_FLAGS) \
	$(INC_daemon) $(CFLAGS_daemon)

$(BUILD)/fuzz/%.c.o: %.c
	@mkdir -p $(@D)
	$(call say,FUZZ-CC,$<)
	$(Q)$(FUZZ_CC) $(FUZZ_CFLAGS) -MMD -MP -c $< -o $@
$(foreach n,$(FUZZ),$(eval $(BUILD)/fuzz/$(n): $(patsubst %,$(BUILD)/fuzz/%.o,tests/fuzz/fuzz_$(n).c $(FUZZ_SRC_$(n))) $(FUZZ_OBJ_$(n))))
$(addprefix $(BUILD)/fuzz/,$(FUZZ)):
	$(call say,LD,$@)
	$(Q)$(FUZZ_CC) $(FUZZ_FLAGS) $^ $(call pc,--libs libzmq jansson libsodium) -lm -lpthread -o $@
fuzz: $(addprefix fuzz-,$(FUZZ)) ## every fuzz target for FUZZ_SECONDS
$(addprefix fuzz-,$(FUZZ)): fuzz-%: $(BUILD)/fuzz/%
	$(call say,FUZZ,$*)
	$(Q)rm -rf $(BUILD)/fuzz/$*.corpus $(BUILD)/fuzz/$*.findings && mkdir -p $(BUILD)/fuzz/$*.findings && \
	  cp -r tests/fuzz/corpus/$* $(BUILD)/fuzz/$*.corpus && \
	  { $(BUILD)/fuzz/$* -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
	    -artifact_prefix=$(BUILD)/fuzz/$*.findings/ $(BUILD)/fuzz/$*.corpus >$(BUILD)/fuzz/$*.log 2>&1 \
	    || { tail -60 $(BUILD)/fuzz/$*.log; echo "fuzz_$* found something: $(BUILD)/fuzz/$*.findings"; exit 1; }; } && \
	  printf '  FUZZ     %s: %s inputs, nothing found\n' $* "$$(sed -n 's/^stat::number_of_executed_units: *//p' $(BUILD)/fuzz/$*.log)"

# ---- what must be installed (Debian 12 names) ------------------------------------------------------------------------
DEPS_build := gcc g++ make pkg-config libuv1-dev libzmq3-dev libjansson-dev libsodium-dev libmicrohttpd-dev libsndfile1-dev libpng-dev
DEPS_demo  := espeak-ng python3
DEPS_test  := libcmocka-dev python3-pytest python3-pytest-xdist python3-numpy python3-zmq python3-torch python3-soundfile clang libclang-rt-14-dev procps \
	locales prometheus chromium chromium-driver python3-selenium
DEPS_lint  := clang-format clang-tidy git
DEPS_bench := libdnnl-dev
DEPS_deb   := debhelper dpkg-dev fakeroot lintian git
DEPS_systemd := debootstrap systemd-container systemd
DEPS       ?= $(DEPS_build) $(DEPS_demo) $(DEPS_test) $(DEPS_lint) $(DEPS_bench)

deps: ## install what is missing of the packages that building, testing and benches need
	@missing=""; for p in $(DEPS); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -z "$$missing" ]; then echo "  DEPS     all there"; exit 0; fi; \
	echo "  DEPS     installing:$$missing"; \
	sudo=""; if [ "$$(id -u)" != 0 ]; then sudo=sudo; fi; \
	$$sudo sh -c "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing" >/tmp/nct-deps.$$$$ 2>&1 \
	  || { tail -20 /tmp/nct-deps.$$$$; echo "could not install:$$missing"; exit 1; }; rm -f /tmp/nct-deps.$$$$

# ---- running ---------------------------------------------------------------------------------------------------------
demo: ## install what is missing, build, and run real recordings through a daemon
	@$(MAKE) -s deps DEPS="$(DEPS_build) $(DEPS_demo)"
	@$(MAKE) -s all
	@BUILD=$(BUILD) tests/demo.sh

test: ## everything that needs no GPU, from nothing to `N passed, N failed`
	@$(MAKE) -s deps
	@MAKE="$(MAKE)" PYTHON=$(PYTHON) BUILD=$(BUILD) $(PYTHON) tests/run.py $(if $(ONLY),--only $(ONLY))

JOBS = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
lint: ## style, includes, static analysis, generated files
	@$(MAKE) -s deps DEPS="$(DEPS_build) $(DEPS_test) $(DEPS_lint)"
	@$(PYTHON) tests/lint/lint.py
	@$(MAKE) -s $(JOBS) all check-generated
	@$(MAKE) -s $(JOBS) tidy

# kernels/cpu/ops_*.c are left out: they use vector shuffles that clang 14 does not know.
TIDY = $(filter-out kernels/cpu/ops_%,$(SRC_layer)) $(SRC_model) $(SRC_client) client/cli/main.c $(SRC_cli) daemon/main.c $(filter-out daemon/engine_cuda%,$(SRC_daemon))
tidy: $(patsubst %,$(BUILD)/tidy/%.ok,$(TIDY)) ## clang-tidy over every C file
$(BUILD)/tidy/%.ok: % .clang-tidy
	@mkdir -p $(@D)
	$(call say,TIDY,$<)
	$(Q)clang-tidy --quiet --warnings-as-errors='*' $< -- -std=gnu11 -D_GNU_SOURCE -DNCT_VERSION='"$(VERSION)"' -Idaemon -Iclient -Iclient/cli -Ikernels \
	  $(CFLAGS_daemon) $(CFLAGS_cli) $(if $(findstring _avx512,$<),-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c,$(if $(findstring _avx2,$<),-mavx2 -mfma -mf16c)) >$@.log 2>&1 || { cat $@.log; exit 1; }
	@touch $@

generated: all ## write the files that are made from the tables: nctd.conf, nctd@.service, man pages, completion
	$(Q)$(PYTHON) conf/manual.py $(BUILD) .
	$(Q)$(PYTHON) tests/bench/tables.py
check-generated: all
	@$(PYTHON) tests/bench/tables.py --check
	@$(PYTHON) conf/manual.py $(BUILD) --check

# ---- the CPU layer's bench (oneDNN is linked into this alone) --------------------------------------------------------
BENCH_SO := $(BUILD)/bench/libbench_layer.so
$(BUILD)/tests/bench/bench_dnnl.c.o: CFLAGS_UNIT = -fopenmp
$(BENCH_SO): $(call o,tests/bench/bench_ours.c tests/bench/bench_dnnl.c) $(LIB_layer)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -shared -fopenmp $^ $(LDFLAGS_ALL) $(LIBS_layer) -ldnnl -o $@
BENCH ?=
bench: $(BENCH_SO) ## the CPU layer against the FMA loop, oneDNN and PyTorch (CPU_VARIANT=name, BENCH="--shapes default --threads 1")
	$(PYTHON) tests/bench/bench_layer.py $(BENCH_SO) --json tests/bench/results/cpu-layer.json $(BENCH)

# ---- the daemon's bench and soak ---------------------------------------------------------------------------------------
$(BUILD)/bench/bench_daemon $(BUILD)/bench/soak: $(BUILD)/bench/%: $(BUILD)/tests/bench/%.c.o $(BUILD)/tests/bench/load.c.o $(LIB_cli) $(LIB_client) $(LIB_layer)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $^ $(LDFLAGS_ALL) $(LIBS_client) $(LIBS_layer) -o $@
# echo_server is what a server of the wire costs at least, for `nct bench` to be pointed at.
$(BUILD)/bench/echo_server: $(BUILD)/tests/bench/echo_server.c.o $(LIB_client)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $^ $(LDFLAGS_ALL) $(LIBS_client) -o $@
bench-latency: $(BUILD)/nctd $(BUILD)/nct $(BUILD)/bench/echo_server ## capture to answer and to subscriber, real-time streams, beside the echo (BENCH="--engine cuda")
	$(PYTHON) tests/bench/latency.py $(BUILD) --json tests/bench/results/latency.json $(BENCH)
# bench_engine runs the CUDA engine alone; FAULTS=1 builds an nctd that NCTD_GPU_FAULT can break (daemon/gpu_fault.h).
$(BUILD)/bench/bench_engine: $(BUILD)/tests/bench/bench_engine.c.o $(LIB_daemon) $(LIB_client) $(LIB_model) $(LIB_layer)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $^ $(LDFLAGS_ALL) $(LIBS_daemon) $(LIBS_model) -o $@
bench-engine: $(BUILD)/bench/bench_engine ## the CUDA engine's copies and kernels overlap (GPU host)
	$(BUILD)/bench/bench_engine --json tests/bench/results/gpu-overlap.json $(BENCH)
bench-daemon: $(BUILD)/nctd $(BUILD)/bench/bench_daemon ## the pipeline against a raw ZeroMQ echo (BENCH="--transport tcp --rounds 9")
	$(BUILD)/bench/bench_daemon $(BUILD)/nctd --json tests/bench/results/daemon.json $(BENCH)
SOAK_SECONDS ?= 600
soak: $(BUILD)/nctd $(BUILD)/bench/soak ## SOAK_SECONDS at saturation: memory flat, ledger exact
	$(BUILD)/bench/soak $(BUILD)/nctd --seconds $(SOAK_SECONDS) --json tests/bench/results/soak.json

# ---- installing ------------------------------------------------------------------------------------------------------
# DESTDIR stands before every path; PREFIX is where the files will be found. /etc is never below PREFIX, and a
# configuration that is there is kept. Afterwards: systemd-sysusers, systemd-tmpfiles --create, systemctl daemon-reload.
libdir     ?= $(PREFIX)/lib
sysconfdir ?= /etc
unitdir    ?= $(PREFIX)/lib/systemd/system
into = $(DESTDIR)$(PREFIX)
install: all ## into DESTDIR/PREFIX: programs, libraries, headers, units, man pages, completion; keeps /etc/nctd/nctd.conf
	$(call say,INSTALL,'$(into)')
	$(Q)install -d $(into)/bin $(into)/sbin $(into)/include $(DESTDIR)$(libdir)/pkgconfig $(DESTDIR)$(sysconfdir)/nctd/conf.d \
	  $(DESTDIR)$(unitdir) $(into)/lib/sysusers.d $(into)/lib/tmpfiles.d $(into)/share/bash-completion/completions \
	  $(into)/share/doc/nctd/examples $(foreach n,1 3 5 8,$(into)/share/man/man$(n))
	$(Q)install -m755 $(BUILD)/nct $(into)/bin/
	$(Q)install -m755 $(BUILD)/nctd $(into)/sbin/
	$(Q)for so in $(SO_layer) $(SO_client); do n=$$(basename $$so .0); \
	  install -m644 $$so $(DESTDIR)$(libdir)/$$n.$(VERSION) && ln -sf $$n.$(VERSION) $(DESTDIR)$(libdir)/$$n.0 && \
	  ln -sf $$n.0 $(DESTDIR)$(libdir)/$$n || exit 1; done
	$(Q)install -m644 client/nct.h kernels/nct_layer.h $(into)/include/
	$(Q)for f in client/nct.pc.in kernels/nct_layer.pc.in; do \
	  sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(libdir)|; s|@VERSION@|$(VERSION)|' $$f >$(DESTDIR)$(libdir)/pkgconfig/$$(basename $$f .in) || exit 1; done
	$(Q)for f in nctd.service nctd@.service; do \
	  sed 's|/usr/sbin/|$(PREFIX)/sbin/|; s|/etc/nctd/|$(sysconfdir)/nctd/|' conf/$$f >$(DESTDIR)$(unitdir)/$$f || exit 1; done
	$(Q)install -m644 conf/nctd.sysusers $(into)/lib/sysusers.d/nctd.conf
	$(Q)install -m644 conf/nctd.tmpfiles $(into)/lib/tmpfiles.d/nctd.conf
	$(Q)install -m644 conf/nctd-gpu.conf conf/nctd-network.conf $(into)/share/doc/nctd/examples/
	$(Q)install -m644 client/nct.1 $(into)/share/man/man1/
	$(Q)install -m644 client/libnct.3 $(into)/share/man/man3/
	$(Q)install -m644 daemon/nctd.conf.5 $(into)/share/man/man5/
	$(Q)install -m644 daemon/nctd.8 $(into)/share/man/man8/
	$(Q)install -m644 conf/nct.bash $(into)/share/bash-completion/completions/nct
	$(Q)test -e $(DESTDIR)$(sysconfdir)/nctd/nctd.conf || install -m644 conf/nctd.conf $(DESTDIR)$(sysconfdir)/nctd/nctd.conf

# ---- packages --------------------------------------------------------------------------------------------------------
# Debian wants debian/ at the top: the committed tree is exported, conf/debian put there, and built by debhelper.
.PHONY: deb test-systemd
DEB := $(BUILD)/deb
deb: ## Debian packages of the committed tree, into $(BUILD)/deb
	@$(MAKE) -s deps DEPS="$(DEPS_build) $(DEPS_deb)"
	$(Q)CUDA=$(CUDA) VERSION=$(VERSION) conf/deb.sh $(DEB)
test-systemd: ## the packages in a Debian that boots under systemd-nspawn: install, serve, kill, reload, stop, purge (root)
	@$(MAKE) -s deps DEPS="$(DEPS_systemd)"
	@ls $(DEB)/nctd_*.deb >/dev/null 2>&1 || $(MAKE) -s deb
	$(Q)tests/systemd/run.sh $(DEB) $(BUILD)/systemd

# ---- the GPU layer: tests and bench, on a host with a card and PyTorch for CUDA ---------------------------------------
GPU_PYTHON ?= python3
GPU_ORACLE := $(BUILD)/libnct_gpu_oracle.so
GPU_ENV     = NCT_LAYER_LIBRARY=$(abspath $(SO_layer)) NCT_GPU_ORACLE=$(abspath $(GPU_ORACLE))
$(GPU_ORACLE): tests/gpu/oracle.cu
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) -O2 -std=c++17 -Xcompiler -fPIC -shared $(GENCODE) $< -o $@
.PHONY: test-gpu sanitize-gpu bench-gpu bench-gpu-peers bundle
$(BUILD)/gpu/walk: $(BUILD)/tests/gpu/walk.c.o $(LIB_layer)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $^ $(LDFLAGS_ALL) $(LIBS_layer) -o $@
SANITIZE_SECONDS ?= 60
sanitize-gpu: $(BUILD)/gpu/walk ## every kernel row on small shapes under compute-sanitizer's tools, SANITIZE_SECONDS (GPU host)
	$(PYTHON) tests/gpu/sanitize.py $(BUILD)/gpu/walk --seconds $(SANITIZE_SECONDS) --out tests/bench/results/gpu-sanitizer.json
test-gpu: $(SO_layer) $(GPU_ORACLE) ## the CUDA layer against the float64 oracle, numerics, bits (GPU host with PyTorch)
	$(GPU_ENV) $(GPU_PYTHON) -m pytest -q tests/gpu $(TESTS)
bundle: all $(BUILD)/bench/echo_server $(if $(filter yes,$(HAVE_CUDA)),$(GPU_ORACLE)) ## a relocatable folder and its tarball for a host without packages
	tests/gpu/bundle.sh $(BUILD) $(BUILD)/bundle/nctd-$(VERSION)
bench-gpu: $(SO_layer) ## the CUDA layer beside PyTorch (PEERS=all adds torch.compile; BENCH="--shapes default")
	$(GPU_ENV) $(GPU_PYTHON) tests/bench/bench_gpu.py --cold --out tests/bench/results/gpu-layer.json $(BENCH)
bench-gpu-peers: ## PyTorch alone, torch.compile beside eager: what bench-gpu says of it without PEERS=all
	$(GPU_PYTHON) tests/bench/compiled.py --out tests/bench/results/gpu-peers.json $(BENCH)

clean: ## remove what was built
	rm -rf build

-include $(shell find $(BUILD) \( -path $(BUILD)/deb -o -path $(BUILD)/systemd \) -prune -o \( -name '*.c.d' -o -name '*.cu.d' \) -print 2>/dev/null)
.SECONDARY:
.DELETE_ON_ERROR:
