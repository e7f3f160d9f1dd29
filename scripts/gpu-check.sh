#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# All there is to be tried on a machine with a GPU, in one folder that needs nothing of the machine but a driver, a C library from
# glibc 2.35 on and bash: no packages, no network, no root, no hugepages, no io_uring.
#
#   scripts/gpu-check.sh                      builds, makes the bundle in build/gpu-check, runs it here
#   scripts/gpu-check.sh --bundle DIR         only makes it, in DIR, which may then be carried away: DIR/run
#   scripts/gpu-check.sh --built ...          takes what is built already
#   scripts/gpu-check.sh ... [-- ARGUMENTS]   for DIR/run, which tells of them with --help
#
# In it: the programs, libmcshm, the double of tests/fake-cuda, the unit programs about GPUs, the scenarios about GPUs with
# a Python of their own, and the libraries that all of these need.
set -euo pipefail
cd "$(dirname "$0")/.."

most=$((50 * 1024 * 1024)) # bytes of a bundle
B=${B:-build}
folder=
build=1 only_make=0
arguments=()

usage() {
    sed -n '4,/^set -/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
    --bundle)
        [ $# -ge 2 ] || usage
        folder=$2 only_make=1
        shift
        ;;
    --built) build=0 ;;
    --fake-cuda) arguments+=(--fake-cuda) ;;
    --)
        shift
        arguments+=("$@")
        break
        ;;
    *) usage ;;
    esac
    shift
done
folder=${folder:-$B/gpu-check}

mapfile -t units < <(find tests -mindepth 2 -maxdepth 2 \( -name 'test_*gpu*.c' -o -name 'test_*cuda*.c' -o -name 'test_gate*.c' \) |
    sed 's|^tests/||; s|\.c$||' | sort)
if [ $build = 1 ]; then
    make -s all "$B/fake-cuda/libcuda.so.1" "${units[@]/#/$B/tests/}"
fi
for file in bin/mcshmd bin/mcshm bin/mcshm-bench lib/libmcshm.so.0 fake-cuda/libcuda.so.1; do
    [ -f "$B/$file" ] || {
        echo "gpu-check.sh: there is no $B/$file; without --built it is built" >&2
        exit 1
    }
done

# What runs is made anew; a log of earlier runs stays.
mkdir -p "$folder"
folder=$(realpath "$folder")
rm -rf "${folder:?}"/{bin,lib,fake-cuda,tests,python,run}
mkdir -p "$folder"/{bin,lib,fake-cuda,tests/scenario,python/bin,python/lib}

# Without what only debuggers and linkers want.
put() { # file, place
    cp -L "$1" "$folder/$2"
    chmod 755 "$folder/$2"
    strip --strip-unneeded "$folder/$2" 2>/dev/null || true
}

for program in mcshmd mcshm mcshm-bench; do
    put "$B/bin/$program" bin/$program
done
put "$B/lib/libmcshm.so.0" lib/libmcshm.so.0
put "$B/fake-cuda/libcuda.so.1" fake-cuda/libcuda.so.1
for unit in "${units[@]}"; do
    [ -x "$B/tests/$unit" ] || continue
    mkdir -p "$folder/tests/$(dirname "$unit")"
    put "$B/tests/$unit" "tests/$unit"
done
for scenario in tests/scenario/*.py; do
    case ${scenario##*/} in
    test_gpu*) ;;
    test_*) continue ;;
    esac
    cp "$scenario" "$folder/tests/scenario/"
done

# Python: the interpreter, and of its modules those that the scenarios import, in one archive that is not compressed, so that it
# takes no zlib to begin.
python3 -B - "$folder" <<'END'
import glob, modulefinder, os, py_compile, shutil, sys, sysconfig, tempfile, zipfile
folder = sys.argv[1]
library, version = sysconfig.get_path("stdlib"), "%d.%d" % sys.version_info[:2]
archive = os.path.join(folder, "python/lib/python%s.zip" % version.replace(".", ""))
extensions = os.path.join(folder, "python/lib/python" + version, "lib-dynload")
os.makedirs(extensions)
shutil.copy(os.path.realpath(sys.executable), os.path.join(folder, "python/bin/python3"))
# What modules would import for uses that no scenario has of them.
without = ("tkinter", "_tkinter", "pydoc", "unittest", "doctest", "asyncio", "multiprocessing", "xml", "pyexpat", "test", "lzma", "_lzma",
           "bz2", "_bz2", "pdb", "_pydecimal", "_decimal", "readline", "_testcapi", "_testinternalcapi", "ssl", "_ssl", "curses", "_pyio",
           "unicodedata", "stringprep", "_strptime", "tarfile", "zipfile", "getpass", "gettext", "optparse", "ftplib")
finder = modulefinder.ModuleFinder(path=[os.path.join(folder, "tests/scenario"), library, os.path.join(library, "lib-dynload")],
                                   excludes=without)
for script in sorted(glob.glob(os.path.join(folder, "tests/scenario/*.py"))):
    finder.run_script(script)
files = {m.__file__ for m in finder.modules.values() if m.__file__ and m.__file__.startswith(library)}
for always in ("encodings", "importlib", "collections", "re"):  # what the interpreter itself begins with
    files.update(glob.glob(os.path.join(library, always, "*.py")))
files.update(os.path.join(library, name + ".py") for name in
             ("abc", "codecs", "io", "os", "site", "stat", "posixpath", "genericpath", "_collections_abc", "_sitebuiltins", "runpy",
              "keyword", "types", "warnings", "traceback", "linecache", "tokenize", "token"))
files = {f for f in files if "/encodings/" not in f or os.path.basename(f)[:-3] in ("__init__", "aliases", "utf_8", "latin_1", "ascii", "idna")}
with zipfile.ZipFile(archive, "w") as z, tempfile.TemporaryDirectory() as scratch:
    for file in sorted(files):
        name = os.path.relpath(file, library)
        if file.endswith(".py"):
            z.write(py_compile.compile(file, os.path.join(scratch, "x"), dfile=name, doraise=True, quiet=1), name + "c")
        else:
            shutil.copy(file, extensions)
END
find "$folder/python" -type f -exec strip --strip-unneeded {} + 2>/dev/null || true

# Libraries that all of it needs, but for the C library's own, which belong to the machine's loader.
{ find "$folder"/{bin,tests,python} -type f -exec ldd {} + 2>/dev/null || true; } |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    while IFS= read -r library; do
        case ${library##*/} in
        ld-linux* | libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libcuda.so.* | libmcshm.so.*) ;;
        *) put "$library" "lib/${library##*/}" ;;
        esac
    done

install -m 755 scripts/gpu-check-run.sh "$folder/run"
# Unit programs, which run on the double and so anywhere, make room for the rest if they must, the largest first.
size_of() {
    du -sb --exclude=log "$folder" | cut -f1
}
while size=$(size_of) && [ "$size" -gt $most ]; do
    largest=$(find "$folder/tests" -mindepth 2 -type f -perm -u+x -not -path '*/scenario/*' -printf '%s %p\n' | sort -rn | sed -n '1s/^[0-9]* //p')
    [ -n "$largest" ] || {
        echo "gpu-check.sh: $folder has $size bytes, at most $most may be carried" >&2
        exit 1
    }
    echo "left out for want of room: ${largest#"$folder"/}"
    rm "$largest"
done
echo "$folder: $((size / 1024 / 1024)) MiB of at most $((most / 1024 / 1024))," \
    "$(find "$folder/tests" -type f -perm -u+x -not -path '*/scenario/*' | wc -l) unit programs," \
    "$(find "$folder/tests/scenario" -name 'test_*' | wc -l) scenarios"
[ $only_make = 0 ] || exit 0
exec "$folder/run" "${arguments[@]}"
