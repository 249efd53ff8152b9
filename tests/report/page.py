# SPDX-License-Identifier: Apache-2.0
"""A page of `tileproof report` without a browser: page.py FILE prints its text, and fails where markup or data are not as they must be."""
import html.parser
import json
import sys

LOCAL = ("#", "data:,")


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.text, self.scripts, self.open, self.ids, self.tags = [], [], [], set(), []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        for name, value in attributes:
            assert not name.startswith("on"), f"<{tag} {name}>: code in an attribute"
            assert name not in ("src", "href", "xlink:href", "action", "srcset") or value.startswith(LOCAL), f"<{tag} {name}={value}>: not in the file"
            assert name != "id" or value not in self.ids, f"id {value} stands twice"
            self.ids |= {value} if name == "id" else set()
        assert tag not in ("img", "iframe", "object", "embed", "base", "form"), f"<{tag}>"
        if tag == "script":
            self.scripts.append([dict(attributes), ""])
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        elif not self.open or self.open[-1] != "style":
            self.text.append(data)

    def data(self):
        """What a click shows: rows by set."""
        (block,) = (text for attributes, text in self.scripts if attributes.get("type") == "application/json")
        whole = json.loads(block)

        def column(x, row):
            return (x[row] if isinstance(x, list) else text(x["t"][row] if isinstance(x, dict) else x))

        def text(number):
            return whole["texts"][number] if number >= 0 else None

        return {name: [{field: column(x, row) for field, x in found["fields"].items()} for row in range(found["count"])]
                for name, found in whole["sets"].items()}  # fmt: skip

    def words(self):
        return " ".join("".join(self.text).split())


def read(path):
    with open(path, encoding="utf-8", newline="") as file:
        page = Page(file.read())
    assert len(page.scripts) == 2, f"{len(page.scripts)} scripts"
    page.data()
    return page


if __name__ == "__main__":
    print(read(sys.argv[1]).words())
