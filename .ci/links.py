"""Checks the links of a crate's rendered docs. Usage: links.py DOC_FOLDER CRATE"""

import pathlib
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.ids = [], set()
        # Blanket implementations come last, with the docs of other crates' methods.
        self.is_foreign = False

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids.update(value for key in ("id", "name") if (value := attrs.get(key)))
        if attrs.get("id") == "blanket-implementations":
            self.is_foreign = True
        if tag == "a" and attrs.get("href") and not self.is_foreign:
            self.links.append(attrs["href"])


def main(docs, crate):
    pages = {}
    for path in (docs / crate).rglob("*.html"):
        page = Page()
        page.feed(path.read_text(encoding="utf-8"))
        pages[path.resolve()] = page
    dead = []
    checked = 0
    for path, page in pages.items():
        for href in page.links:
            url = urlsplit(href)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            # Pages of sources and of other crates do not belong to the crate.
            inside = docs.resolve() / crate in [target, *target.parents]
            if not inside and docs.resolve() in target.parents and target.exists():
                continue
            # rustdoc has one list of all items per crate, but links to one for each inlined crate.
            if target.name in ("help.html", "settings.html", "all.html"):
                continue
            checked += 1
            if target.is_dir():
                target /= "index.html"
            other = pages.get(target)
            # Like browsers, compare the anchor both literally and decoded.
            anchors = {url.fragment, unquote(url.fragment)}
            # Anchors of other pages may be created by a script.
            if other is None or (url.fragment and url.path == "" and not anchors & other.ids):
                dead.append(f"{path.relative_to(docs.resolve())}: {href}")
    for link in sorted(set(dead)):
        print(link, file=sys.stderr)
    print(f"{checked} links on {len(pages)} pages, {len(set(dead))} dead")
    return bool(dead)


sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2]))
