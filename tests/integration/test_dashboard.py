"""`groupwise watch` in a browser: the first screen, curves, what is live, recipes, small screens, light and dark."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from groupwise.base.harmless import visible
from groupwise.runs import RunLog
from groupwise.types import StepRecord
from tests.integration.browser import CHROMIUM, NO_CHROMIUM, Browser
from tests.integration.dashboard_site import (
    EVERY_MARK,
    LONG_TOKENS,
    TOKEN_STEP,
    click,
    count,
    curve,
    id_of,
    serving,
    text,
    type_into,
    write_large_run,
    write_watched_runs,
)
from tests.integration.synthetic_run import HOSTILE, RECIPE, write_synthetic_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
MAX_OPEN_MS = 300
PHONE_WIDTH = 390


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_watched_runs(tmp_path_factory.mktemp("watched"))


@pytest.fixture(scope="module")
def site(root: Path) -> Iterator[str]:
    with serving(root) as address:
        yield address


@pytest.fixture(scope="module")
def first(root: Path) -> str:
    return id_of(root / "first")


@pytest.fixture(scope="module")
def second(root: Path) -> str:
    return id_of(root / "second")


@contextlib.contextmanager
def watching(root: Path, port: int) -> Iterator[str]:
    command = [sys.executable, "-m", "groupwise", "watch", str(root), "--port", str(port), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


def test_the_first_screen(tab: Browser, site: str, first: str) -> None:
    tab.open(f"{site}#run={first}")
    tab.wait(count(curve("pass_at_1")))
    assert tab.evaluate("document.title") == "groupwise watch"
    assert tab.evaluate(text("#run-title")) == "first"
    assert tab.evaluate(count(".run-row")) == 2
    # Where the newest step's time went, and whether a loss near 0 means anything.
    assert tab.evaluate(count("#phases > div")) == 5
    assert "sample" in tab.evaluate(text("#phase-legend"))
    tab.wait("document.querySelectorAll('#signs li').length > 2")
    assert "Look at these instead" in tab.evaluate(text("#signs"))
    tab.wait(f"{text('#findings')} !== 'Reading the run …'")
    order = tab.evaluate("[...document.querySelectorAll('.chart:not([hidden])')].map((chart) => chart.dataset.panel)")
    wanted = "pass_at_1 reward sft_loss kl step_kl clip entropy grad_norm length dead_groups time memory"
    assert " ".join(order) == wanted  # this run has no tokens/s
    # The band is the interval: it has as many corners as two lines of its points.
    assert tab.evaluate(count('[data-panel="pass_at_1"] .band')) == 1
    assert tab.evaluate(count('[data-panel="pass_at_1"] .mark')) == 4


def test_a_finding_says_what_to_change(tab: Browser, tmp_path: Path) -> None:
    log = RunLog(tmp_path / "collapsed")
    log.write_recipe(RECIPE)
    for step in range(1, 81):
        entropy = max(0.02, 0.8 - step / 60)
        metrics = {"reward/mean": 0.1, "policy/loss": 0.0, "policy/entropy_nats": entropy, "score/pass_at_1": 0.1}
        log.write_step(StepRecord(step, "grpo", step, metrics | {"groups/signal_share": 0.5, "policy/grad_norm": 0.1}))
    log.close()
    with serving(tmp_path) as address:
        tab.open(address)
        tab.wait(count(".finding.problem"))
        assert tab.evaluate(text("#signs-title")) == "The loss is 0. Is it training?"
        said = tab.evaluate(text("#findings"))
        assert "Entropy collapsed" in said
        assert "steps 61 to 80" in said
        assert tab.evaluate(text(".change code")).endswith(".optimizer.learning_rate = 5e-7")
        tab.wait(f"{text('.run-facts')}.includes('1 finding')")
        tab.leave()


def test_several_runs_at_once(tab: Browser, site: str, first: str, second: str) -> None:
    tab.open(f"{site}#run={first}")
    tab.wait(count(curve("reward")))
    tab.evaluate(click(f'[data-run="{second}"] input'))
    tab.wait(f"{count(curve('reward'))} === 2")
    assert f"with={second}" in tab.evaluate("location.hash")
    colours = f"[...document.querySelectorAll('{curve('reward')}')].map((line) => getComputedStyle(line).stroke)"
    assert len(set(tab.evaluate(colours))) == 2
    assert "first" in tab.evaluate(text('[data-panel="reward"] .readout'))
    # Values of both at a step.
    tab.evaluate(
        "(() => { const image = document.querySelector('[data-panel=\"reward\"] svg'); image.focus();"
        "for (const key of ['Home', 'ArrowRight']) image.dispatchEvent(new KeyboardEvent('keydown', { key })); })()"
    )
    tab.wait(f"{text('[data-panel=reward] .step')} === 'step 1'")
    tab.wait(f"{text('[data-panel=pass_at_1] .step')} === 'step 1'")  # the same step in every chart
    assert tab.evaluate(count('[data-panel="pass_at_1"] .key')) == 2
    # A smooth line in front of a thin one; a log axis where there is something above 0.
    tab.evaluate("(() => { const s = document.getElementById('smooth'); s.value = '0.8';"
                 "s.dispatchEvent(new Event('input')); })()")  # fmt: skip
    tab.wait(f"{count('[data-panel=reward] .raw')} === 2")
    ticks = "[...document.querySelectorAll('[data-panel=\"kl\"] .plot text')].map((t) => t.textContent).join()"
    linear = tab.evaluate(ticks)
    tab.evaluate(click("#log"))
    tab.wait(f"{ticks} !== {json.dumps(linear)}")
    tab.evaluate(click(f'[data-run="{first}"] input'))
    tab.wait(f"{text('#run-title')} === 'second'")


def test_a_metric_is_added_by_name_and_kept_in_the_address(tab: Browser, site: str, first: str) -> None:
    tab.open(f"{site}#run={first}")
    tab.wait(count(curve("reward")))
    tab.evaluate("(() => { const m = document.getElementById('metric'); m.value = 'policy/loss';"
                 "m.dispatchEvent(new Event('change')); })()")  # fmt: skip
    tab.wait(count(curve("more-policy/loss")))
    assert "near 0 is normal" in tab.evaluate(text('[data-panel="more-policy/loss"] .why'))
    address = tab.evaluate("location.href")
    tab.open(address)
    tab.wait(count('[data-panel="more-policy/loss"]'))
    tab.evaluate(click('[data-panel="more-policy/loss"] button'))
    assert tab.evaluate(count('[data-panel="more-policy/loss"]')) == 0


def test_curves_grow_while_the_run_writes(tab: Browser, tmp_path: Path) -> None:
    log = RunLog(tmp_path / "live")
    log.write_recipe(RECIPE)
    log.write_event("started", step=0)
    stop = threading.Event()

    def write(step: int) -> None:
        log.write_step(StepRecord(step, "grpo", step, {"reward/mean": step / 100, "time/step_s": 0.1}))

    def go_on() -> None:
        step = 3
        while not stop.wait(0.05):
            step += 1
            write(step)

    for step in (1, 2, 3):
        write(step)
    writer = threading.Thread(target=go_on)
    points = f"Number(document.querySelector('{curve('reward')}')?.dataset.points || 0)"
    with serving(tmp_path) as address:
        tab.size(1400, 700)
        tab.open(address)
        assert tab.wait(f"{points} >= 3 && {points}") == 3
        tab.evaluate("window.isSamePage = true; scrollTo(0, 200);"
                     "window.chart = document.querySelector('[data-panel=\"reward\"]')")  # fmt: skip
        place = tab.evaluate("scrollY")
        assert place > 0
        writer.start()
        try:
            grown = tab.wait(f"{points} > 10 && {points}")
            tab.wait(f"{points} > {grown}")
        finally:
            stop.set()
            writer.join()
            log.close()
        assert tab.evaluate("window.isSamePage && window.chart === document.querySelector('[data-panel=\"reward\"]')")
        assert tab.evaluate("scrollY") == place
        tab.leave()


def test_a_resumed_run_is_redrawn(tab: Browser, tmp_path: Path) -> None:
    path = write_synthetic_run(tmp_path / "run", num_steps=60, groups_per_step=1)
    points = f"Number(document.querySelector('{curve('reward')}')?.dataset.points || 0)"
    with serving(tmp_path) as address:
        tab.open(address)
        tab.wait(f"{points} === 60")
        log = RunLog(path)
        log.rewind(50)
        log.close()
        tab.wait(f"{points} === 50")
        tab.leave()


def test_nothing_is_asked_while_the_page_is_hidden(tab: Browser, site: str) -> None:
    tab.open(site)
    tab.wait(count(curve("reward")))
    tab.evaluate("""(() => {
        window.numAsked = 0;
        const ask = window.fetch;
        window.fetch = (...all) => { window.numAsked += 1; return ask(...all); };
        window.hide = (isHidden) => {
            Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        };
    })()""")
    tab.wait("window.numAsked > 0")
    # After the round that may be under way has ended, two beats without a question.
    quiet = "new Promise((done) => { hide(true); setTimeout(() => { const before = numAsked;"
    quiet += "setTimeout(() => done(numAsked - before), 2200); }, 800); })"
    assert tab.evaluate(quiet) == 0
    before = tab.evaluate("window.numAsked")
    tab.evaluate("hide(false)")
    tab.wait(f"window.numAsked > {before}")


def test_it_says_when_the_server_is_gone(tab: Browser, root: Path, first: str) -> None:
    """The command itself, so that its connections end with it."""
    with watching(root, 0) as address:
        tab.open(f"{address}#run={first}")
        tab.wait(count(curve("reward")))
        assert tab.evaluate("document.getElementById('banner').hidden")
    tab.wait("!document.getElementById('banner').hidden")
    assert "does not answer" in tab.evaluate(text("#banner"))
    assert tab.evaluate(count(curve("reward"))) == 1  # what was read stays
    with watching(root, int(address.rsplit(":", 1)[1].strip("/"))):
        tab.wait("document.getElementById('banner').hidden")
        tab.leave()
    tab.clear()  # the console tells of the lost connections


def test_empty_states_are_said_in_words(tab: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as address:
        tab.open(address)
        tab.wait(count("#nothing .empty"))
        assert "No runs yet" in tab.evaluate(text("#nothing"))
        log = RunLog(tmp_path / "new")
        log.write_recipe(RECIPE)
        log.close()
        tab.wait(f"{text('#run-title')} === 'new'")  # by itself
        assert "No step has been recorded yet" in tab.evaluate(text("#now-sentence"))
        tab.evaluate(click("#tab-groups"))
        tab.wait(count("#group-list .empty"))
        assert "logging.rollouts_every_steps" in tab.evaluate(text("#group-list"))
        tab.open(f"{address}#run=ffffffffffff")
        tab.wait(count("#nothing .empty"))
        assert "not among those" in tab.evaluate(text("#nothing"))
        tab.leave()


def test_recipe_and_difference(tab: Browser, site: str, first: str, second: str) -> None:
    tab.open(f"{site}#run={first}&view=recipe")
    tab.wait(count(".recipe-text"))
    assert tab.evaluate(text(".recipe-text")) == RECIPE
    tab.wait(count(f'#against option[value="{second}"]'))
    tab.evaluate(f"(() => {{ const a = document.getElementById('against'); a.value = '{second}';"
                 "a.dispatchEvent(new Event('change')); })()")  # fmt: skip
    tab.wait(count(".difference"))
    cells = (
        "[...document.querySelectorAll('.difference tbody tr')].map((row) => [...row.children].map((c) => c.innerText))"
    )
    assert ["seed", "0", "7"] in tab.evaluate(cells)
    assert ["stages.grpo.optimizer.learning_rate", "not set", "0.000003"] in tab.evaluate(cells)
    tab.open(tab.evaluate("location.href"))
    tab.wait(count(".difference"))


@pytest.mark.parametrize(
    "view", ["overview", "groups", "recipe", f"groups&group={TOKEN_STEP}.1", "groups&kind=eval&group=60.0"]
)
def test_on_a_phone_nothing_sticks_out(tab: Browser, site: str, first: str, second: str, view: str) -> None:
    tab.size(PHONE_WIDTH, 800, is_phone=True)
    tab.open(f"{site}#run={first}&with={second}&against={second}&view={view}")
    shown = {"overview": ".curve", "groups": ".group-row", "recipe": ".difference"}
    tab.wait(count(shown.get(view, ".rollout")))
    assert tab.evaluate("document.documentElement.scrollWidth") == PHONE_WIDTH
    wide = (
        "[...document.querySelectorAll('main *, dialog *')].filter((e) => e.getBoundingClientRect().right > innerWidth"
    )
    wide += " && !e.closest('svg') && !e.closest('.only-heard')).map((e) => e.className || e.tagName)"
    assert tab.evaluate(wide) == []


def test_light_and_dark(tab: Browser, site: str, first: str, tmp_path: Path) -> None:
    """Each theme has its background; whether it looks good is for people to judge."""
    image = pytest.importorskip("PIL.Image")

    def brightness(name: str) -> int:
        with image.open(tab.screenshot(tmp_path / f"{name}.png")) as picture:
            return int(picture.convert("L").getpixel((700, 995)))

    tab.open(f"{site}#run={first}")
    tab.wait(count(curve("reward")))
    assert brightness("light") > 230
    tab.prefer(prefers_color_scheme="dark")
    assert brightness("dark") < 40
    # The button goes against the system, and is remembered.
    tab.evaluate(click("#theme"))
    assert brightness("chosen") > 230
    tab.open(f"{site}#run={first}&view=recipe")
    tab.wait(count(".recipe-text"))
    assert tab.evaluate("document.documentElement.style.colorScheme") == "light"
    tab.evaluate("localStorage.clear()")


def test_groups_are_filtered_and_the_address_keeps_it(tab: Browser, site: str, first: str) -> None:
    tab.open(f"{site}#run={first}&view=groups")
    tab.wait(f"{count('.group-row')} === 50")
    assert "1 to 50 of 63 groups, 504 completions" in tab.evaluate(text("#group-count"))
    tab.evaluate(click("#older"))
    tab.wait(f"{count('.group-row')} === 13")
    type_into(tab, "signal", "no")
    tab.wait(f"{text('#group-list')}.includes('no signal') && !{text('#group-list')}.includes('spread')")
    type_into(tab, "signal", "")
    type_into(tab, "first_step", str(TOKEN_STEP))
    tab.wait(f"{count('.group-row')} === 6")
    type_into(tab, "q", f"TRAIN-{TOKEN_STEP}-1")
    tab.wait(f"{count('.group-row')} === 1")
    assert tab.evaluate(text("mark")) == f"train-{TOKEN_STEP}-1"
    tab.open(tab.evaluate("location.href"))
    tab.wait(f"{count('.group-row')} === 1")
    assert tab.evaluate("document.getElementById('filters').elements.q.value") == f"TRAIN-{TOKEN_STEP}-1"
    type_into(tab, "q", "no text has this")
    tab.wait(count("#group-list .empty"))
    tab.evaluate(click("#clear-filters"))
    tab.wait(f"{count('.group-row')} === 50")
    tab.evaluate(click('[data-kind="eval"]'))
    tab.wait(f"{text('#group-count')}.includes('800 groups')")


def test_a_group_token_by_token(tab: Browser, site: str, first: str) -> None:
    tab.open(f"{site}#run={first}&view=groups&group={TOKEN_STEP}.1")
    tab.wait(f"{count('.rollout')} === 8")
    assert "create an equation" in tab.evaluate(text(".prompt pre"))
    # The sign of an advantage is a colour and a symbol; the colours of tokens follow it, and do not leave their side.
    up = "[...document.querySelectorAll('.rollout')].filter((card) => card.querySelector('.advantage.up'))"
    assert tab.evaluate(f"{up}.length > 0 && {up}.every((card) => card.textContent.includes('▲ +'))")
    assert tab.evaluate(
        f"{up}.every((card) => card.querySelector('.up-3, .up-4') && !card.querySelector('[class^=down]'))"
    )
    assert tab.evaluate(text("#scale")).startswith("÷")
    tab.evaluate("document.querySelector('.rollout [data-token=\"3\"]').dispatchEvent("
                 "new PointerEvent('pointerover', { bubbles: true }))")  # fmt: skip
    tip = tab.evaluate("document.getElementById('tip').innerText")
    assert all(word in tip for word in ("4 of ", "probability", "logprob", "ratio", "KL", "entropy"))
    tab.evaluate("(() => { const c = document.getElementById('colour'); c.value = 'entropy';"
                 "c.dispatchEvent(new Event('change')); })()")  # fmt: skip
    assert tab.evaluate(count(".up-1")) == 0
    assert tab.evaluate(count(".rollout .heat-1")) > 0
    # Arrows walk through groups, and through tokens where a text has the focus; Esc closes.
    tab.press("ArrowLeft")
    tab.wait(f"{text('#group-title')}.includes('train-{TOKEN_STEP}-0')")
    tab.press("ArrowRight")
    tab.wait(f"{text('#group-title')}.includes('train-{TOKEN_STEP}-1')")
    tab.evaluate("document.querySelector('.rollout pre').focus()")
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    tab.wait(f"{text('#tip')}.includes('2 of ')")
    assert f"group={TOKEN_STEP}.1" in tab.evaluate("location.hash")
    tab.press("Escape")
    tab.wait("!document.getElementById('group').open")
    # The dialog tells of its closing a moment after it is closed.
    tab.wait("!location.hash.includes('group=')")
    tab.wait(f"document.activeElement.dataset.group === '{TOKEN_STEP}.1'")


def test_where_no_tokens_were_kept_it_says_so(tab: Browser, site: str, first: str) -> None:
    tab.open(f"{site}#run={first}&view=groups&group={TOKEN_STEP - 1}.0")
    tab.wait(f"{count('.rollout')} === 8")
    assert "logging.tokens_every_steps" in tab.evaluate(text("#group-body"))
    assert tab.evaluate(count("[data-token]")) == 0
    assert "answer" in tab.evaluate(text(".rollout pre"))
    tab.evaluate(click("#group-body > p button.link"))
    tab.wait(f"{count('.group-row')} === 3 && {count('.badge.tokens')} === 3")
    # One completion of this group was not learned from, and its run keeps no reference.
    tab.evaluate(click(f'[data-group="{TOKEN_STEP}.0"]'))
    tab.wait(f"{count('.rollout')} === 8")
    assert tab.evaluate(text(".rollout:last-child")).count("did not learn from this") == 1
    tab.evaluate(click(".gold button.link"))
    tab.wait(f"{count('.group-row')} === 1 && !document.getElementById('problem-filter').hidden")


def test_a_long_completion_comes_as_it_is_scrolled_to(tab: Browser, site: str, first: str) -> None:
    tab.open(f"{site}#run={first}&view=groups&group={TOKEN_STEP}.0")
    tab.wait(f"{count('.rollout')} === 8")
    shown = tab.evaluate(count(".rollout:first-child [data-token]"))
    assert shown < 1000
    tab.evaluate("(() => { const block = document.querySelector('.rollout pre'); block.scrollTop = 1e6; })()")
    tab.wait(f"{count('.rollout:first-child [data-token]')} > {shown}")
    assert tab.evaluate(count(".rollout:first-child [data-token]")) < LONG_TOKENS


def test_hostile_text_is_text(tab: Browser, site: str, first: str) -> None:
    for index, hostile in ((0, HOSTILE), (1, HOSTILE + "x" * 100_000 + HOSTILE)):
        tab.open(f"{site}#run={first}&view=groups&kind=eval&group={TOKEN_STEP}.{index}")
        tab.wait(f"{count('.rollout')} === 1")
        tab.wait("(() => { const more = document.querySelector('.rollout .rest'); more?.click(); return !more; })()")
        assert tab.evaluate(text(".rollout pre")) == visible(hostile)
        assert tab.evaluate("document.title") == "groupwise watch"
        assert tab.evaluate(count("img")) == 0
        assert tab.evaluate(count("script")) == 1


def test_marks_are_made_visible_as_in_a_report(tab: Browser, site: str, first: str) -> None:
    tab.open(f"{site}#run={first}&view=groups&kind=eval&group=0.2")
    tab.wait(f"{count('.rollout')} === 1")
    tab.wait("(() => { const more = document.querySelector('.rollout .rest'); more?.click(); return !more; })()")
    assert tab.evaluate(text(".rollout pre")) == visible(EVERY_MARK)


def test_a_group_opens_quickly_among_100_000_rollouts(tab: Browser, tmp_path: Path) -> None:
    run = write_large_run(tmp_path, num_steps=196, groups_per_step=64)
    with serving(tmp_path) as address:
        tab.open(f"{address}#run={id_of(run)}&view=groups")
        tab.wait(f"{text('#group-count')}.includes('12,544 groups, 100,352 completions') && "
                 f"!{text('#group-count')}.includes(';')", timeout_s=60)  # fmt: skip
        spent = []
        for number in range(5):
            # From the click to the frame after the one that shows it.
            spent.append(
                tab.evaluate(f"""new Promise((done) => {{
                    const begin = performance.now();
                    document.querySelectorAll(".group-row")[{number * 9}].click();
                    const look = () => (document.querySelectorAll(".rollout").length === 8
                        ? requestAnimationFrame(() => setTimeout(() => done(performance.now() - begin)))
                        : requestAnimationFrame(look));
                    look();
                }})""")
            )
            tab.press("Escape")
            tab.wait("!document.getElementById('group').open")
        assert statistics.median(spent) < MAX_OPEN_MS, spent
        tab.leave()
