"""The public items of the published crates, from rustdoc's JSON."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def documented():
    """The JSON of each published crate with all its features, by the crate's name.

    With CONCENTRIC_DOCUMENTED, an earlier check has written it: cargo does not know the files, and writes them again.
    """
    # The variable that permits unstable options is set for rustdoc alone: cargo would rebuild all dependencies.
    flags = {"RUSTDOC": ROOT / ".ci/rustdoc-unstable", "RUSTDOCFLAGS": "-Z unstable-options --output-format json"}
    names = sorted(path.name for path in ROOT.glob("crates/*") if path.name not in ("concentric-bench", "concentric-sim"))
    command = "cargo doc --quiet --lib --all-features --no-deps".split() + [f"--package={name}" for name in names]
    if "CONCENTRIC_DOCUMENTED" not in os.environ:
        subprocess.run(command, cwd=ROOT, env=os.environ | flags, check=True)
    return {name: json.loads((TARGET / f"doc/{name.replace('-', '_')}.json").read_bytes()) for name in names}


def kind(item):
    return next(iter(item["inner"]))


def items(crate, module=None):
    """The public items of a module and of those below it, each with its id; by default, of the whole crate."""
    seen, left = set(), [crate["root"] if module is None else module]
    while left:
        id_ = left.pop()
        item = crate["index"].get(str(id_))
        if id_ in seen or item is None or item["crate_id"] != 0:
            continue
        seen.add(id_)
        yield id_, item
        inner = item["inner"][kind(item)]
        if kind(item) == "module":
            left += inner["items"]
        elif kind(item) == "use":
            left.append(inner["id"])


def references(node):
    """The ids of the items that a part of a signature names."""
    if isinstance(node, list):
        for value in node:
            yield from references(value)
    elif isinstance(node, dict):
        if "path" in node and "id" in node:
            yield node["id"]
        for value in node.values():
            yield from references(value)
