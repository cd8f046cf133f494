"""The page by itself: complete, closed to the network, and not to be broken by names."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tomllib
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from pantile.report_page import SCRIPTS, page

ROOT = Path(str(files("pantile.report_page")))
EVIL = '</script><script>alert("1")</script><!--{{style}}'
REPORT = {"name": EVIL, "kind": "training", "ops": [{"module": EVIL}], "values": [1, 0.5, None]}


class Elements(HTMLParser):
    """Every element with its attributes, and the text of each script."""

    def __init__(self) -> None:
        super().__init__()
        self._inside = False
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data):
        if self._inside:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)

    def handle_endtag(self, tag):
        self._inside = False


@pytest.fixture(scope="module")
def elements():
    parser = Elements()
    parser.feed(page(REPORT, against={"name": "other"}))
    return parser


def test_nothing_is_loaded_from_anywhere(elements):
    loading = {"link", "img", "iframe", "object", "embed", "audio", "video", "base"}
    assert not [tag for tag, _ in elements.found if tag in loading]
    assert not [attributes for _, attributes in elements.found if "src" in attributes]
    assert {a["href"] for _, a in elements.found if "href" in a} == {"#main"}
    assert "url(" not in (ROOT / "style.css").read_text()
    assert "@import" not in (ROOT / "style.css").read_text()


def test_a_name_cannot_leave_the_data_it_lies_in(elements):
    data = [json.loads(text) for attributes, text in elements.scripts if "type" in attributes]

    assert data == [REPORT, {"name": "other"}]
    assert len(elements.scripts) == 4


def test_the_policy_names_the_two_scripts_and_forbids_the_rest(elements):
    [policy] = [a["content"] for tag, a in elements.found if a.get("http-equiv")]
    text = page(REPORT)
    bodies = re.findall(r"<script>(.*?)</script>", text, re.S)
    hashes = [base64.b64encode(hashlib.sha256(b.encode()).digest()).decode() for b in bodies]

    assert policy.startswith("default-src 'none'; ")
    [allowed] = re.findall(r"script-src ([^;]*);", policy)
    assert allowed == " ".join(f"'sha256-{one}'" for one in hashes)
    assert len(hashes) == 2


def test_text_is_never_made_into_markup():
    for name in SCRIPTS:
        code = re.sub(r"//.*", "", (ROOT / name).read_text())
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(", code)


def test_every_script_is_part_of_the_page():
    there = {p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.js")}

    assert there == {*SCRIPTS, "vendor/echarts.min.js"}


def test_an_installed_package_has_every_file_of_the_page():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["pantile.report_page"]
    packed = {p for pattern in patterns for p in ROOT.glob(pattern)}

    there = {p for p in ROOT.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    assert packed == there


def test_echarts_is_the_published_file_with_its_licences():
    vendor = ROOT / "vendor"
    published = "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"

    assert hashlib.sha256((vendor / "echarts.min.js").read_bytes()).hexdigest() == published
    assert "Apache License" in (vendor / "LICENSE-echarts").read_text()
    assert "The Apache Software Foundation" in (vendor / "NOTICE-echarts").read_text()
    assert "Bostock" in (vendor / "LICENSE-d3").read_text()


def _luminance(colour: str) -> float:
    def linear(part: str) -> float:
        value = int(part, 16) / 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    full = colour if len(colour) == 6 else "".join(2 * c for c in colour)
    red, green, blue = (linear(full[i : i + 2]) for i in (0, 2, 4))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(scheme):
    """WCAG 2.2, 1.4.3: a contrast of at least 4.5."""
    light, dark = re.findall(r":root \{(.*?)\}", (ROOT / "style.css").read_text(), re.S)[:2]
    block = light if scheme == "light" else dark
    colours = dict(re.findall(r"--(\w+): #([0-9a-f]+);", block))

    for text in ("text", "quiet", "link", "good", "warn", "bad"):
        for ground in ("ground", "panel"):
            pair = sorted((_luminance(colours[text]), _luminance(colours[ground])))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (text, ground)
