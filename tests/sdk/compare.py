"""Compares the requests of the vendors' own SDKs with those of our provider layers.

usage: compare.py CONCENTRIC_SDK [API]... [--show CONVERSATION]

`differences.toml` lists the expected differences with their reasons. An unexpected difference and an
unused entry are failures.
"""

import difflib
import json
import pathlib
import subprocess
import sys
import tomllib

from conversation import Conversation, NotTaken
from sdks import APIS, NORMAL
from server import Server

HERE = pathlib.Path(__file__).parent
MISSING = object()


def conversations():
    found = {}
    for path in sorted((HERE / "conversations").glob("*.json")):
        found |= json.loads(path.read_text())
    return found


def same(ours, theirs):
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    return ours == theirs


def differences(ours, theirs, at=""):
    """Yields the leaves that differ, as (pointer, ours, theirs)."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in ours.keys() | theirs.keys():
            pair = ours.get(name, MISSING), theirs.get(name, MISSING)
            name = name.replace("~", "~0").replace("/", "~1")
            yield from differences(*pair, f"{at}/{name}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        for index, pair in pairs(ours, theirs):
            yield from differences(*pair, f"{at}/{index}")
    elif ours is MISSING or theirs is MISSING or not same(ours, theirs):
        yield at, ours, theirs


def pairs(ours, theirs):
    """Yields the corresponding items of two lists."""
    keys = [[json.dumps(item, sort_keys=True) for item in items] for items in (ours, theirs)]
    matcher = difflib.SequenceMatcher(None, *keys, autojunk=False)
    for _, a, a_end, b, b_end in matcher.get_opcodes():
        for step in range(max(a_end - a, b_end - b)):
            one = ours[a + step] if a + step < a_end else MISSING
            other = theirs[b + step] if b + step < b_end else MISSING
            yield (a + step if one is not MISSING else f"+{b + step}"), (one, other)


def show(value):
    return "nothing" if value is MISSING else json.dumps(value, ensure_ascii=False)[:300]


class Table:
    """The expected differences."""

    def __init__(self, apis):
        table = tomllib.loads((HERE / "differences.toml").read_text())
        self.entries = [(kind, entry) for kind in ("difference", "refusal")
                        for entry in table.get(kind, []) if entry["api"] in apis]
        self.needed = {(number, name, value) for number, (_, entry) in enumerate(self.entries)
                       for name in ("paths", "conversations") for value in entry.get(name, [""])}

    def find(self, kind, api, conversation, paths, fits):
        for number, (of, entry) in enumerate(self.entries):
            if of != kind or entry["api"] != api or not fits(entry):
                continue
            names = [name for name in entry.get("conversations", [""]) if name in ("", conversation)]
            paths_here = [path for path in entry.get("paths", [""]) if not path or path_fits(path, paths)]
            if names and paths_here:
                self.needed -= {(number, "conversations", name) for name in names}
                self.needed -= {(number, "paths", path) for path in paths_here}
                return True
        return False

    def difference(self, api, conversation, at, ours, theirs):
        def fits(entry):
            values = (("ours", ours), ("theirs", theirs))
            return all(name not in entry or value is not MISSING and same(entry[name], value)
                       for name, value in values)
        return self.find("difference", api, conversation, at, fits)

    def refusal(self, api, conversation, ours, sdk):
        def fits(entry):
            return entry["message"] in ours and entry.get("sdk", "can't") == sdk
        return self.find("refusal", api, conversation, "", fits)

    def unused(self):
        for number, name, value in sorted(self.needed):
            kind, entry = self.entries[number]
            yield f"unused {kind}, {name} {value!r}: {entry['why']}"


def path_fits(pattern, at):
    """Returns whether a path matches a pattern, in which `*` matches one step."""
    pattern, at = pattern.split("/"), at.split("/")
    return len(pattern) == len(at) and all(one in ("*", other) for one, other in zip(pattern, at))


# The headers that are compared.
HEADERS = ("anthropic-beta", "anthropic-version", "authorization", "content-type", "x-api-key", "x-goog-api-key")


def request(sent, api):
    """Returns the parts of a request that are compared."""
    body = json.loads(sent["body"])
    return {
        "method": sent["method"],
        "target": sent["target"],
        "headers": {name: sent["headers"][name] for name in HEADERS if name in sent["headers"]},
        "body": NORMAL[api](body) if api in NORMAL else body,
    }


def compare(binary, apis, shown):
    lines = subprocess.run([binary, HERE / "conversations"], check=True, stdout=subprocess.PIPE)
    lines = [json.loads(line) for line in lines.stdout.split(b"\n") if line]
    all_conversations, table, failures = conversations(), Table(apis), []
    counts = {api: {"conversations": set(), "same": 0, "differ": 0, "refused": 0} for api in apis}
    with Server() as server:
        for line in lines:
            api, name, stream = line["api"], line["conversation"], line["stream"]
            if api not in apis or shown not in (None, name):
                continue
            counts[api]["conversations"].add(name)
            where = f"{api}, {name}, {'stream' if stream else 'whole'}"
            ours = line["sent"]
            conversation = Conversation(all_conversations[name], api, line["model"])
            try:
                APIS[api](server, conversation, stream)
                theirs = server.last()
            except NotTaken as why:
                theirs = {"refused": str(why)}
            if "refused" in ours:
                sdk = "can't" if "refused" in theirs else "can"
                counts[api]["refused"] += 1
                if not table.refusal(api, name, ours["refused"], sdk):
                    failures.append(f"{where}: ours refuses the conversation, the SDK {sdk} send it: {ours['refused']}")
                continue
            if "refused" in theirs:
                failures.append(f"{where}: the SDK can't send the conversation: {theirs['refused']}; ours sends {ours['body'][:600]}")
                continue
            ours, theirs = request(ours, api), request(theirs, api)
            if shown:
                print(where, json.dumps({"ours": ours, "theirs": theirs}, indent=1, ensure_ascii=False))
            found = list(differences(ours, theirs))
            counts[api]["differ" if found else "same"] += 1
            for at, one, other in found:
                if not table.difference(api, name, at, one, other):
                    failures.append(f"{where}: {at}: ours {show(one)}, theirs {show(other)}")
    if shown is None:
        failures += table.unused()
    for failure in failures:
        print(failure)
    for api, count in counts.items():
        print(f"{api}: {len(count.pop('conversations'))} conversations, each as a stream and whole:", count)
        if shown is None and count["same"] + count["differ"] == 0:
            failures.append("nothing was compared")
    print(f"{len(failures)} failures")
    return not failures


def main():
    binary, *rest = sys.argv[1:]
    shown = None
    if "--show" in rest:
        at = rest.index("--show")
        shown = rest[at + 1]
        del rest[at : at + 2]
    sys.exit(0 if compare(binary, rest or list(APIS), shown) else 1)


if __name__ == "__main__":
    main()
