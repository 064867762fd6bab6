#!/usr/bin/env bash
# Build an sdist, and a wheel from the tree; install each in an environment of its own outside the tree and use it.
# usage: tools/check_dist.sh PYTHON DIST_DIR
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "$1")
mkdir -p "$2"
dist=$(realpath "$2")
rm -f "$dist"/segstore-*
elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT

# From a copy of what git would give: what is left of other builds must not slip in.
mkdir "$elsewhere/tree"
git ls-files -z --cached --others --exclude-standard -- . ':!tests' | xargs -0 cp --parents -t "$elsewhere/tree"
(cd "$elsewhere/tree" && "$python" setup.py -q sdist --dist-dir "$dist")
"$python" -m pip wheel -q --no-deps --no-build-isolation -w "$dist" "$elsewhere/tree"
compgen -G "$dist/segstore-*-cp310-abi3-linux_*.whl" >/dev/null || {
    echo "no wheel is tagged for the stable ABI of Python 3.10 and later: $(ls "$dist")" >&2
    exit 1
}
cd "$elsewhere"

for file in "$dist"/segstore-*.whl "$dist"/segstore-*.tar.gz; do
    rm -rf env
    "$python" -m venv env
    env/bin/python -m pip install -q "$file"
    env/bin/python - <<'PROGRAM'
import importlib.resources, tempfile
import segstore
from segstore._native import lib

package = importlib.resources.files("segstore")
assert (package / "py.typed").is_file(), "py.typed is not in the package"
assert (package / "_native" / "contract" / "batch.h").is_file(), "the native sources are not in the package"
exhibits = [file.name for file in (package / "bench" / "zero_copy").iterdir() if not file.name.endswith(".py")]
assert exhibits in ([], ["__pycache__"]), f"only segstore bench zero-copy uses what is in the package: {exhibits}"
with tempfile.TemporaryDirectory() as path:
    with segstore.open(path) as store:
        store.create_topic("t", partitions=1)
        store.partition("t", 0).append_batch([b"a", None], keys=[None, b"k"])
        assert list(store.partition("t", 0).read(0).values) == [b"a", None]
    assert list(segstore.check(path)) == []
PROGRAM
    env/bin/segstore --help >/dev/null
    echo "installs and works elsewhere: $(basename "$file")"
done
