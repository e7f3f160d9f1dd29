# SPDX-License-Identifier: Apache-2.0
#
#   make                 programs and libraries, into build/
#   make test            unit tests and scenarios; closes with "N passed, N failed, N skipped"
#   make test-rdma       RDMA rails in a VM with software RDMA devices (tests/rdma); installs QEMU
#   make demo            installs what is missing, builds, runs the main job
#   make fuzz            libFuzzer on each target of tests/fuzz for SECONDS (60); TARGET names some; needs clang
#   make soak            three hosts under random faults for MINUTES (10), bytes then objects; needs root
#   make bench           ring, copy and kv, one after the other
#   make bench-rdma      net and kv over RDMA, beside perftest, in a virtual machine; needs root
#   make lint            formatting, static analysis, house rules; silent when all is well
#   make man             manual pages, into build/man
#   make deb             Debian packages, into build/deb
#   make deb-check       builds them, and installs, uses and removes them in a fresh Debian 12; needs root
#   make install         PREFIX (/usr/local), LIBDIR (PREFIX/lib) and DESTDIR
#   SAN=address|thread   the same with sanitizers and failpoints, into build/address, build/thread
#   FAIL=1               the same with failpoints (shm/failpoint.h), into build/fail

VERSION := $(shell sed -n 's/^\#define MCSHM_VERSION "\(.*\)"/\1/p' lib/mcshm.h)
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
SAN ?=
FAIL ?=
B := build$(if $(SAN),/$(SAN),$(if $(FAIL),/fail))

comma := ,

CC ?= gcc
OPT ?= $(if $(filter address thread,$(SAN)),-O1,-O2)
FORTIFY ?= $(if $(SAN),0,2)
ifeq ($(SAN),fuzz)
SANFLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer \
            -DMCS_TICKS_SIMULATED -w
else
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN)$(if $(filter address,$(SAN)),$(comma)undefined -fno-sanitize-recover=undefined) -fno-omit-frame-pointer)
endif
# GCC's TSan knows no fences (shm/atomic.h names their partners); it would also inline memcpy without
# watching it; Criterion's own processes cannot run under it, tests/plain/ runs the same tests in one.
SANFLAGS += $(if $(filter thread,$(SAN)),-Wno-tsan -fno-builtin -Itests/plain)
WARN := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes -Wmissing-prototypes $(if $(CI),-Werror)
# DPDK's headers are taken without the -march that its pkg-config file asks for: builds are for the
# baseline of the architecture, wider instructions are chosen at run time.
DPDK_CFLAGS := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags-only-I libdpdk 2>/dev/null | tr ' ' '\n' | grep dpdk))
CFLAGS += -std=gnu11 $(OPT) -g -fPIC -fvisibility=hidden -pthread $(WARN) $(SANFLAGS) 
CPPFLAGS += -D_GNU_SOURCE -D_FORTIFY_SOURCE=$(FORTIFY) $(if $(SAN)$(FAIL),-DMCS_FAILPOINTS) -I. -Ilib -I$B/gen $(DPDK_CFLAGS)
LDFLAGS += -pthread $(SANFLAGS) -Wl,--as-needed
# The toolkit's header where it is late enough, else our own declarations (shm/cuda_own.h).
CUDA_LATE := $(shell printf '\043include <cuda.h>\n\043if CUDA_VERSION >= 13000\nlate\n\043endif\n' | $(CC) $(CPPFLAGS) -E -P - 2>/dev/null | tail -n 1)
CPPFLAGS += $(if $(filter late,$(CUDA_LATE)),,-DMCS_CUDA_OWN)
# DPDK goes in statically where that can be had: its shared library loads every driver that is installed,
# a hundred milliseconds that a client would wait for at each restart of the agent; and only so can the
# measuring of the processor's clock, another hundred, be left out when it is known (daemon/eal.c).
DPDK_LIBS := -lrte_eal -lrte_ring -lrte_kvargs -lrte_log
ifneq ($(wildcard /usr/lib/*/librte_eal.a),)
DPDK_WRAP := -Wl,--wrap=get_tsc_freq,--wrap=eal_cpu_socket_id
DPDK_LIBS := -Wl,-Bstatic -Wl,--start-group $(DPDK_LIBS) -lrte_telemetry -Wl,--end-group -Wl,-Bdynamic -lbsd
endif
DAEMON_LIBS := $(DPDK_LIBS) -liniparser -lmicrohttpd -lcjson -lnuma -lcurl -lprotobuf-c -lssl -lcrypto -luring -lisal -lsystemd -lpcre2-8 -libverbs -lm
# librte_log is a library of its own only since DPDK 23.11
DAEMON_LIBS := $(filter-out $(if $(wildcard /usr/lib/*/librte_log.so),,-lrte_log),$(DAEMON_LIBS))

shm_src := shm/queue.c shm/inbox.c shm/region.c shm/message.c shm/cuda.c $(if $(SAN)$(FAIL),shm/failpoint.c)
lib_src := $(wildcard lib/*.c) $(shm_src)
daemon_src := $(filter-out daemon/main.c daemon/master_main.c,$(wildcard daemon/*.c)) $(wildcard transports/*.c transports/*/*.c store/*/*.c) \
              $(shm_src) shm/queue_create.c
# What the doctor knows of RDMA devices is what the agent knows.
cli_src := $(wildcard cli/*.c) transports/rdma/gid.c transports/rdma/sysfs.c
# The policies and the directory are measured without an agent, too.
bench_src := $(wildcard bench/*.c store/object/policy*.c store/object/directory*.c) store/object/key.c
unit_src := $(wildcard tests/*/test_*.c)

obj = $(patsubst %.c,$B/obj/%.o,$1)
programs := $B/bin/mcshmd $B/bin/mcshm-master $B/bin/mcshm $B/bin/mcshm-bench
libraries := $B/lib/libmcshm.so.0 $B/lib/libmcshm.so $B/lib/libmcshm.a
units := $(patsubst tests/%.c,$B/tests/%,$(unit_src))

.PHONY: all test unit scenario failing plain-library test-rdma rdma fuzz fuzzers soak bench bench-rdma demo lint man install uninstall deb deb-check clean
.DELETE_ON_ERROR:
.SECONDARY:

all: $(programs) $(libraries)

$B/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

# What is tested is compiled as it is used; the tests themselves need not be fast, and optimizing their assertions, most of
# all under sanitizers, takes longer than all the rest.
ifneq ($(SAN),fuzz)
$B/obj/tests/%.o: OPT = -O0
$B/obj/tests/%.o: FORTIFY = 0
endif

# Messages between agents: made from daemon/peer.proto, and not held to our warnings.
messages := $B/gen/daemon/peer.pb-c.h
$(messages): daemon/peer.proto
	@mkdir -p $(@D)
	protoc-c --c_out=$B/gen $<
$(messages:.h=.c): $(messages)
$(messages:.h=.o): $(messages:.h=.c) $(messages)
	$(CC) $(CPPFLAGS) $(filter-out $(WARN),$(CFLAGS)) -w -c $< -o $@
# Whether an object includes them is known only once it is built; they change rarely.
$(call obj,$(daemon_src) daemon/main.c daemon/master_main.c $(unit_src)): | $(messages)

$B/lib/libmcshm.so.0: $(call obj,$(lib_src)) lib/libmcshm.map
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -shared -Wl,-soname,libmcshm.so.0 -Wl,-z,nodelete -Wl,--version-script=lib/libmcshm.map \
	    $(if $(SAN),,-Wl$(comma)--no-undefined) -o $@ $(filter %.o,$^)
$B/lib/libmcshm.so: $B/lib/libmcshm.so.0
	ln -sf libmcshm.so.0 $@
$B/lib/libmcshm.a: $(call obj,$(lib_src))
	@mkdir -p $(@D)
	rm -f $@ && ar rcs $@ $^
$B/lib/libmcshmd.a: $(call obj,$(daemon_src)) $(messages:.h=.o)
	@mkdir -p $(@D)
	rm -f $@ && ar rcs $@ $^

$B/bin/mcshmd: $(call obj,daemon/main.c) $B/lib/libmcshmd.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $(DPDK_WRAP) -o $@ $^ $(DAEMON_LIBS)
$B/bin/mcshm-master: $(call obj,daemon/master_main.c) $B/lib/libmcshmd.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(DAEMON_LIBS)
$B/bin/mcshm: $(call obj,$(cli_src)) $B/lib/libmcshm.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ -lcjson
$B/bin/mcshm-bench: $(call obj,$(bench_src)) $B/lib/libmcshm.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ -lcjson -lm $(if $(wildcard /usr/include/infiniband/verbs.h),-libverbs)

# Unit tests see the inside of library and agent. Each is one Criterion program.
$B/tests/%: $B/obj/tests/%.o $B/lib/libmcshm.a $B/lib/libmcshmd.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $< $B/lib/libmcshm.a $B/lib/libmcshmd.a $(DAEMON_LIBS) -lcriterion

# Those that bring RDMA devices of their own (tests/fake-verbs) are linked with these in libibverbs' place.
fake_objs := $(call obj,$(wildcard tests/fake-verbs/*.c))
fake_units := $(patsubst tests/%.c,$B/tests/%,$(shell grep -l '"tests/fake-verbs/fake.h"' $(unit_src)))
$(fake_units): $B/tests/%: $B/obj/tests/%.o $(fake_objs) $B/lib/libmcshm.a $B/lib/libmcshmd.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $< $(fake_objs) $B/lib/libmcshm.a $B/lib/libmcshmd.a \
	    $(filter-out -libverbs,$(DAEMON_LIBS)) -lcriterion

# The double of the GPU driver, for tests and for programs that they start with LD_LIBRARY_PATH. Without sanitizers in
# any build, so that Python loads it too; never installed.
fake_cuda := $B/fake-cuda/libcuda.so.1
$(fake_cuda): $(wildcard tests/fake-cuda/*.c tests/fake-cuda/*.h shm/cuda*.h) shm/atomic.h tests/fake-cuda/libcuda.map
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -D_GNU_SOURCE -I. $(OPT) -g -fPIC -pthread $(WARN) -shared -Wl,-soname,libcuda.so.1 -Wl,-z,nodelete \
	    -Wl,-z,defs -Wl,--version-script=tests/fake-cuda/libcuda.map -o $@ $(filter %.c,$^)

# These play the catalog and the way to other hosts themselves.
$B/tests/daemon/test_object_far $B/tests/daemon/test_object_far_put $B/tests/daemon/test_object_gpu_far: LDFLAGS += $(addprefix -Wl$(comma)--wrap=,mcd_ask \
    mcd_ask_cancel mcd_ask_done_with mcd_ask_is_over mcd_asks_turn mcd_leg_begin mcd_leg_cancel)

# These play the copiers of GPUs themselves.
$B/tests/daemon/test_gpu_task $B/tests/daemon/test_gpu_task_ends $B/tests/daemon/test_gate \
    $B/tests/daemon/test_object_gpu $B/tests/daemon/test_object_gpu_ends $B/tests/daemon/test_object_gpu_far \
    $B/tests/daemon/test_remote_stage $B/tests/daemon/test_serve_stage: LDFLAGS += \
    $(addprefix -Wl$(comma)--wrap=mct_cuda_,post port_open port_close port_take port_arm)

# Fuzzers: tests/fuzz/run builds them with SAN=fuzz and clang.
$B/fuzz/%: $B/obj/tests/fuzz/fuzz_%.o $B/obj/tests/fuzz/ticks.o $B/lib/libmcshm.a $B/lib/libmcshmd.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $(filter %.o,$^) $B/lib/libmcshm.a $B/lib/libmcshmd.a $(DAEMON_LIBS)

fuzzers: $(patsubst tests/fuzz/fuzz_%.c,$B/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))

# Cluster metadata by hand, for scenarios.
$B/bin/metactl: $(call obj,tests/scenario/metactl.c $(wildcard store/meta/*.c) $(if $(SAN)$(FAIL),shm/failpoint.c))
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ -lcurl -lcjson

# A client that does everything once, for scenarios with failpoints. The sanitizers' builds have them
# compiled in; beside the plain build lies one that has.
$B/bin/mixclient: $(call obj,tests/scenario/mixclient.c) $B/lib/libmcshm.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^

# For the VM of tests/rdma: verbs alone.
$B/bin/verbs_smoke: $(call obj,tests/rdma/verbs_smoke.c)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ -libverbs

# What calls the GPU driver is compiled against our own declarations of it, too: so a host without the toolkit would.
own := $(patsubst %.c,$B/obj/own/%.o,shm/cuda.c lib/gate.c $(wildcard transports/cuda/*.c lib/gpu*.c daemon/*gpu*.c bench/gpu*.c bench/device.c bench/location.c))
$B/obj/own/%.o: %.c | $(messages)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -UMCS_CUDA_OWN -DMCS_CUDA_OWN $(CFLAGS) -MMD -MP -c $< -o $@

unit: all $(units) $(fake_cuda) $(own) $B/bin/metactl $(if $(SAN),$B/bin/mixclient,$(if $(filter build,$B),failing build/tests/shim.so))
failing:
	@$(MAKE) --no-print-directory FAIL=1 B=build/fail SAN= $(addprefix build/fail/,bin/mcshmd bin/mcshm \
	    bin/mixclient lib/libmcshm.so.0 fake-cuda/libcuda.so.1)
# Preloaded, makes system calls fail.
build/tests/shim.so: tests/shim/shim.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -D_GNU_SOURCE -I. $(OPT) -g -fPIC -shared $(WARN) -o $@ $<
scenario: unit $(if $(filter thread,$(SAN)),plain-library)
	@B=$B SAN=$(SAN) tests/run
# TSan cannot be loaded into a running Python: scenarios in Python drive its agent with this one.
plain-library:
	@$(MAKE) --no-print-directory SAN= build/lib/libmcshm.so.0
# In a make of its own, since what is installed decides how to compile.
test:
	@scripts/deps.sh build test
	@$(MAKE) --no-print-directory scenario

# Not a part of test: a machine is emulated for it. In makes of their own likewise; nothing is built while it runs.
test-rdma:
	@scripts/deps.sh build
	@$(MAKE) --no-print-directory rdma
rdma: all failing $B/bin/verbs_smoke
	@B=$B tests/rdma/run "$(SCENARIO)"

# Not a part of test: it takes as long as it is told to.
MINUTES ?= 10
soak: all $(if $(filter thread,$(SAN)),plain-library)
	@B=$B SAN=$(SAN) python3 -B tests/scenario/soak_hosts.py $(MINUTES)
	@B=$B SAN=$(SAN) python3 -B tests/scenario/soak_store.py $(MINUTES)

SECONDS ?= 60
TARGET ?=
fuzz:
	@scripts/deps.sh build fuzz
	@tests/fuzz/run --seconds $(SECONDS) $(TARGET)

bench: all
	$B/bin/mcshm-bench ring
	$B/bin/mcshm-bench copy
	$B/bin/mcshm-bench kv

bench-rdma: all
	@scripts/deps.sh build vm
	@B=$B bench/rdma.sh

demo:
	@scripts/demo.sh

lint: 
	@scripts/lint.sh

# What the programs and the header say of themselves.
$B/man/.made: scripts/man.sh scripts/man-header.awk lib/mcshm.h $(programs)
	rm -rf $B/man
	scripts/man.sh $B/bin $B/man
	touch $@
man: $B/man/.made

data := $(PREFIX)/share/mcshm
services := $(PREFIX)/lib/systemd/system
install: all man
	install -d $(addprefix $(DESTDIR),$(PREFIX)/bin $(PREFIX)/sbin $(LIBDIR)/pkgconfig $(PREFIX)/include \
	    $(data)/hugepages $(data)/grafana $(services) $(PREFIX)/lib/sysusers.d $(PREFIX)/lib/tmpfiles.d \
	    $(addprefix $(PREFIX)/share/man/,man1 man3 man5 man8))
	install -m 755 $B/bin/mcshmd $B/bin/mcshm-master $(DESTDIR)$(PREFIX)/sbin
	install -m 755 $B/bin/mcshm $B/bin/mcshm-bench $(DESTDIR)$(PREFIX)/bin
	install -m 644 lib/mcshm.h $(DESTDIR)$(PREFIX)/include
	install -m 644 $B/lib/libmcshm.so.0 $(DESTDIR)$(LIBDIR)
	ln -sf libmcshm.so.0 $(DESTDIR)$(LIBDIR)/libmcshm.so
	install -m 644 $B/lib/libmcshm.a $(DESTDIR)$(LIBDIR)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|' -e 's|@VERSION@|$(VERSION)|' lib/mcshm.pc.in \
	    > $(DESTDIR)$(LIBDIR)/pkgconfig/mcshm.pc
	for s in 1 3 5 8; do install -m 644 $B/man/man$$s/* $(DESTDIR)$(PREFIX)/share/man/man$$s; done
	sed -e 's|@PREFIX@|$(PREFIX)|' etc/mcshmd.service.in > $(DESTDIR)$(services)/mcshmd.service
	sed -e 's|@PREFIX@|$(PREFIX)|' etc/mcshm-master.service.in > $(DESTDIR)$(services)/mcshm-master.service
	scripts/hugepages/persist.sh --unit $(data)/hugepages > $(DESTDIR)$(services)/mcshm-hugepages.service
	install -m 644 etc/sysusers.d/mcshm.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d
	install -m 644 etc/tmpfiles.d/mcshm.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d
	install -m 644 etc/mcshmd.ini $(DESTDIR)$(data)/mcshmd.ini.sample
	install -m 644 etc/grafana/mcshm.json $(DESTDIR)$(data)/grafana
	install -m 755 $(filter-out %/common.sh,$(wildcard scripts/hugepages/*)) $(DESTDIR)$(data)/hugepages
	install -m 644 scripts/hugepages/common.sh $(DESTDIR)$(data)/hugepages
uninstall:
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,sbin/mcshmd sbin/mcshm-master bin/mcshm bin/mcshm-bench include/mcshm.h \
	    share/man/man1/mcshm.1 share/man/man1/mcshm-bench.1 share/man/man3/mcshm.3 share/man/man3/mcshm_*.3 \
	    share/man/man5/mcshmd.ini.5 share/man/man8/mcshmd.8 share/man/man8/mcshm-master.8 lib/sysusers.d/mcshm.conf lib/tmpfiles.d/mcshm.conf)
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,libmcshm.so libmcshm.so.0 libmcshm.a pkgconfig/mcshm.pc)
	rm -f $(addprefix $(DESTDIR)$(services)/,mcshmd.service mcshm-master.service mcshm-hugepages.service)
	rm -rf $(DESTDIR)$(data)

# Packages are built from a copy of the tree as it stands, so that nothing here changes.
deb:
	@scripts/deps.sh build deb
	@scripts/deb.sh build/deb
deb-check: deb
	@scripts/deb-check.sh build/deb

clean:
	rm -rf build

-include $(own:.o=.d)
-include $(patsubst %.o,%.d,$(call obj,$(lib_src) $(daemon_src) daemon/main.c daemon/master_main.c $(cli_src) $(bench_src) $(unit_src) $(wildcard tests/fuzz/*.c tests/fake-verbs/*.c) tests/scenario/metactl.c tests/scenario/mixclient.c tests/rdma/verbs_smoke.c))
