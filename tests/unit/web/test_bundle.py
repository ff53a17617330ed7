"""Bundles: what is joined and in which order, what is refused, and that every asset is used and shipped."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from groupwise.web.bundle import ASSETS, BundleError, bundle_script, bundle_style, fill_page, read_asset
from groupwise.web.dashboard.loopback_server import SCRIPT as DASHBOARD
from groupwise.web.label_page import SCRIPT as AUDIT
from groupwise.web.report.page import SCRIPT as REPORT

NODE = shutil.which("node")
ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "groupwise"
NAMES = sorted(path.name for path in ASSETS.iterdir())


def write(folder: Path, **modules: str) -> Path:
    for name, text in modules.items():
        (folder / f"{name}.js").write_text(text)
    return folder


def run(script: str) -> str:
    return subprocess.run([str(NODE), "-e", script], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.skipif(NODE is None, reason="no node here")
@pytest.mark.parametrize("script", [REPORT, DASHBOARD, AUDIT], ids=["report", "dashboard", "audit"])
def test_bundles_are_valid_scripts(script: str, tmp_path: Path) -> None:
    path = tmp_path / "bundle.js"
    path.write_text(script, encoding="utf-8")
    done = subprocess.run([str(NODE), "--check", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(NODE is None, reason="no node here")
def test_modules_stand_once_after_what_they_import_in_strict_mode(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        entry='import { two } from "./left.js";\nimport {\n  three,\n} from "./right.js";\n'
        "console.log(two + three(), (function () { return this; })());\n",
        left='import { one } from "./base.js";\nexport const two = one + 1;\n',
        right='import { one } from "./base.js";\nexport const three = () => one + 2;\n',
        base='console.log("base");\nexport const one = 1;\n',
    )
    assert run(bundle_script("entry.js", folder)) == "base\n5 undefined\n"


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        (
            {"entry": 'import { a } from "./one.js";\nconst b = a;\n', "one": "export const a = 1;\nlet b = 2;\n"},
            "b is declared by one.js and by entry.js",
        ),
        ({"entry": "const a = 1;\nfunction a() {}\n"}, "a is declared by entry.js and by entry.js"),
        (
            {
                "entry": 'import { a } from "./one.js";\n',
                "one": 'import { b } from "./two.js";\nexport const a = 1;\n',
                "two": 'import { a } from "./one.js";\nexport const b = 1;\n',
            },
            "import cycle: entry.js → one.js → two.js → one.js",
        ),
        (
            {"entry": 'import { a, b } from "./one.js";\n', "one": "export const a = 1;\nconst b = 2;\n"},
            "one.js does not export b",
        ),
        ({"entry": "export default 1;\n"}, "cannot take 'export default 1;'"),
        ({"entry": "const a = 1;\nexport { a };\n"}, "cannot take 'export { a };'"),
        ({"entry": 'import * as one from "./one.js";\n'}, "cannot take 'import "),
        ({"entry": 'import { a as b } from "./one.js";\n', "one": "export const a = 1;\n"}, "does not export a as b"),
        ({"entry": "const [a, b] = [1, 2];\n"}, r"cannot take 'const \[a"),
        ({"entry": 'const a = "</script>";\n'}, "'</script' would end its element"),
    ],
)
def test_what_the_bundle_refuses(tmp_path: Path, modules: dict[str, str], says: str) -> None:
    with pytest.raises(BundleError, match=says):
        bundle_script("entry.js", write(tmp_path, **modules))


def test_a_value_is_not_searched_for_places() -> None:
    page = fill_page("dashboard.html", style="{{script}}", script="<b>")
    assert "<style>{{script}}</style>" in page
    with pytest.raises(BundleError, match=r"dashboard\.html: places and values differ: script"):
        fill_page("dashboard.html", style="")


def test_styles_are_joined_in_the_order_given() -> None:
    assert bundle_style("base.css", "audit.css") == "\n" + read_asset("base.css") + read_asset("audit.css")


def test_every_asset_is_used_by_a_page_and_is_shipped() -> None:
    """A page names its entry module, its styles and its skeleton; modules name each other."""
    code = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    calls = re.findall(r"(?:bundle_script|bundle_style|fill_page)\(([^)]*)", code)
    used = set(re.findall(r'"([\w-]+\.(?:js|css|html))"', "".join(calls)))
    waiting = [name for name in used if name.endswith(".js")]
    while waiting:
        for name in re.findall(r'from "\./([\w-]+\.js)";', read_asset(waiting.pop())):
            if name not in used:
                used.add(name)
                waiting.append(name)
    assert sorted(used) == NAMES
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = table["tool"]["setuptools"]["package-data"]["groupwise"]
    assert all(any(fnmatch(f"web/assets/{name}", pattern) for pattern in patterns) for name in used)


@pytest.mark.parametrize("name", NAMES)
def test_assets_stay_short(name: str) -> None:
    lines = read_asset(name).splitlines()
    assert len(lines) < 500
    assert max(map(len, lines)) <= 120 or name == "dashboard.html"
