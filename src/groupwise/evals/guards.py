"""Guards: checks that a model keeps its abilities outside the task.

They measure perplexity on general text (PASSAGES, below) and format-following on a small general set
(general_format.py), at the start of a run and with each held-out evaluation. `judge` compares the two readings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from groupwise.base.stats import bootstrap_interval, mean
from groupwise.base.text_layout import percent
from groupwise.config import ConfigError, GuardsConfig
from groupwise.data.batch import Example
from groupwise.engines.engine import Engine
from groupwise.evals.general_format import GeneralFormat
from groupwise.evals.held_out import make_requests, scored_groups
from groupwise.models.chat import Prompts, check_fits
from groupwise.models.policy import Policy
from groupwise.runs.results import Estimate
from groupwise.scoring.scorer import LocalScorer, ScoreFunction
from groupwise.types import SamplingParams

MAX_TOKENS = 4096
"""Passage tokens that go through the model at once. Only affects memory."""
FORMAT_TOKENS = 64
"""Maximum length of a completion of a format request. All requests need less."""
GENERAL_TEXT_VERSION = "general-text/1"
"""Version of PASSAGES: changing one changes every perplexity, so raise it with them."""


def check_guards_fit(config: GuardsConfig, prompts: Prompts, context_tokens: int) -> None:
    """Raise a ConfigError if the model's context is too short for the format requests."""
    if not config.max_format_drop:
        return
    try:
        check_fits(prompts.of(GeneralFormat().problems("held_out")), FORMAT_TOKENS, context_tokens)
    except ConfigError as error:
        raise ConfigError(f"guards: {error}, or set guards.max_format_drop = 0") from None


GuardReadings = Mapping[str, float]
"""`perplexity` on general text and `format_share` of general requests, those that are guarded."""


def read_guards(config: GuardsConfig, policy: Policy, engine: Engine) -> GuardReadings:
    """Measure what is guarded, with the current weights."""
    readings = {}
    if config.max_perplexity_ratio:
        readings["perplexity"] = perplexity_estimate(policy).value
    if config.max_format_drop:
        readings["format_share"] = _format_share(policy, engine)
    return readings


def judge(config: GuardsConfig, before: GuardReadings, now: GuardReadings) -> list[str]:
    """Return a sentence for each broken guard."""
    broken = []
    if config.max_perplexity_ratio:
        old, new = before["perplexity"], now["perplexity"]
        # Written so that NaN counts as the worst perplexity.
        if not new <= config.max_perplexity_ratio * old:
            broken.append(
                f"perplexity on general text rose from {old:.2f} to {new:.2f}, more than "
                f"{config.max_perplexity_ratio:g} times as much (guards.max_perplexity_ratio)"
            )
    if config.max_format_drop:
        old, new = before["format_share"], now["format_share"]
        if old - new > config.max_format_drop:
            broken.append(
                f"the share of followed general requests fell from {percent(old)} to {percent(new)}, by more than "
                f"{percent(config.max_format_drop)} (guards.max_format_drop)"
            )
    return broken


def perplexity_estimate(policy: Policy) -> Estimate:
    """Return exp of the mean over passages of their nats per token, each conditioned on its first token.

    A passage that exceeds the model's context is truncated. The interval is a bootstrap over passages.
    """
    examples = []
    for passage in PASSAGES:
        first, *rest = policy.tokenizer.encode(passage, add_special_tokens=False)[: policy.context_tokens]
        examples.append(Example(prompt_ids=(first,), completion_ids=tuple(rest)))
    logprobs = policy.old_logprobs(examples, 1.0, MAX_TOKENS)
    nats = [-float(row.double().mean()) for row in logprobs]
    low, high = bootstrap_interval(nats)
    return Estimate(_exp(mean(nats)), _exp(low), _exp(high), len(nats), "bootstrap")


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


def _format_share(policy: Policy, engine: Engine) -> float:
    """Return the share of followed requests. Greedy, so readings of the same weights are equal."""
    task, prompts = GeneralFormat(), Prompts(policy.tokenizer)
    requests = make_requests(prompts.of(task.problems("held_out")), 1, 0)
    scorer = LocalScorer(ScoreFunction(task))
    sampling = SamplingParams(max_new_tokens=FORMAT_TOKENS, temperature=0.0)
    shares = [scored.pass_rate for scored in scored_groups(engine, scorer, requests, sampling, policy)]
    return mean([share for share in shares if share is not None])


PASSAGES = (
    "The bakery on the corner opens before sunrise. By six the first loaves are on the shelf, and the smell reaches "
    "the bus stop across the street. Most customers buy the same thing every day, so the baker often has it ready in "
    "a bag before they reach the counter.",
    "A river does not run straight for long. Where the current is faster it wears the bank away, and where it is "
    "slower it drops sand and gravel. Over the years each small bend becomes a larger one, until the water breaks "
    "through and leaves an old loop behind as a lake.",
    "When you plant tomatoes, wait until the nights are mild. Set the young plants deep, with only the upper leaves "
    "above the soil, because roots will grow from the buried part of the stem. Water them at the base and keep the "
    "leaves dry.",
    "The meeting lasted longer than anyone had planned. Two people wanted to delay the decision until the new figures "
    "were in, and three thought that waiting would cost more than a mistake. In the end they agreed to try it in one "
    "office first and to look at the results in the spring.",
    "My grandmother kept her letters in a tin that had once held biscuits. After she died we read them aloud, one "
    "each evening. Some were about the weather and the price of coal, and some were about things that none of us had "
    "known.",
    "Sound needs something to travel through. In air it covers about a kilometre in three seconds, which is why you "
    "see lightning before you hear the thunder. In water it is more than four times as fast, and in steel faster "
    "still.",
    "The old bridge was built for carts. When lorries began to cross it, the stones shifted a little each winter, and "
    "the town had to choose between closing it and making it stronger. They kept the arches and hid a frame of steel "
    "inside.",
    "To make a simple soup, cook an onion slowly in butter until it is soft and sweet. Add carrots and potatoes in "
    "small pieces, cover them with stock, and let everything simmer for half an hour. Season it at the end, and serve "
    "it with bread.",
    "The library has changed its opening hours. From the first of next month it will be open until eight on Tuesdays "
    "and Thursdays, and closed on Monday mornings. Books can be returned at any time through the slot beside the main "
    "door.",
    "Cats sleep for most of the day, but lightly. An ear turns at every sound, and a door that opens in the kitchen "
    "is enough to wake them. They hunt at dawn and at dusk, when small animals are busy and the light is poor.",
    "In the nineteenth century a letter from London to Sydney took about three months. A merchant who asked a "
    "question in January had to wait until summer for the answer, and by then the question had often changed.",
    "He had been running for only a few weeks, and hills were still hard. The trick, his sister said, was to take "
    "shorter steps and to stop looking at the top. He tried it on the way home and found that she was right.",
    "Glass is made from sand, soda and lime, melted together at a great heat. While it is soft it can be blown, "
    "pressed or rolled, and once it has cooled it keeps its shape. Small amounts of metal give it colour: cobalt "
    "makes it blue.",
    "The train was late again, so the platform filled up. Someone shared a bag of cherries with strangers. When the "
    "doors opened at last, nobody pushed, and a man with a cello was let on first.",
    "A good map leaves things out. If every tree and every wall were drawn, the roads would be lost among them. The "
    "art lies in choosing what the reader needs, and in making it easy to find.",
    "Bees tell each other where flowers are by dancing. A bee that has found a good field runs in a short straight "
    "line on the comb and shakes her body; the angle of the line gives the direction, and its length the distance.",
    "The committee received forty applications for the three grants. Each was read by two people who did not know who "
    "had written it. Where their marks were far apart, a third person read it as well.",
    "It rained for the whole of the first week, and we played cards in the tent. On the eighth day the clouds lifted "
    "and showed us mountains that we had not known were there. Nobody spoke for a minute.",
    "Before paper came to Europe, books were written on the skins of calves and sheep. A large Bible could take the "
    "skins of two hundred animals and the work of a scribe for more than a year, so that a library of fifty books was "
    "a rich one.",
    "If the engine will not start, check the simple things first. Is there fuel in the tank? Are the terminals of the "
    "battery clean and tight? Only when both are in order is it worth looking at the starter.",
    "The museum's new wing is mostly empty space. Critics complained about the cost, but on its first Sunday the hall "
    "was full of children lying on the floor and looking up at the light that moved across the ceiling.",
    "Prices rose faster than wages for three years in a row, and people changed what they bought. Sales of fresh fish "
    "and new shoes fell. Repair shops, on the other hand, had more work than they could do.",
    "Her first novel was refused by eleven publishers. The twelfth took it, on the condition that she change the "
    "ending. She did, and regretted it; when the book was printed again ten years later, the old ending was put back.",
    "A lighthouse keeper's day was ruled by small duties. The lamp had to be cleaned each morning, the oil measured, "
    "the weather written down. At night someone had to stay awake and watch that the light kept turning.",
    "Most of the water on Earth is salt. Of the part that is fresh, the greater share is frozen in the ice of "
    "Greenland and Antarctica, or lies deep under the ground. Rivers and lakes hold less than one part in a hundred "
    "of it.",
    "The children built a dam across the stream with stones and mud. It held for most of an hour. When it broke, they "
    "cheered even louder than when they had finished it, and began again a little further down.",
    "Please leave the key with the neighbour on the second floor when you go. The heating may stay on, but close the "
    "windows and take the rubbish down with you. We hope that you had a good stay.",
    "Chess players speak of a quiet move: one that captures nothing and threatens nothing at once, but improves the "
    "position so much that the other side can find no good reply. Such moves are hard to see, since nothing points to "
    "them.",
    "After the storm the beach was covered with weed and driftwood, and among it lay a wooden box with brass corners. "
    "It was empty. For years afterwards the family argued about what had been in it.",
    "Vaccines teach the body to recognize an illness without having to suffer it. A harmless piece of the germ is "
    "enough: cells that fit it multiply, and some of them remain for years, ready for the real thing.",
    "The apprentice was told to sharpen the same chisel every morning for a month. Only in the fourth week did he "
    "notice the sound that the stone made when the angle was right, and after that he never had to look.",
    "On the island there were no cars, and the post came twice a week by boat. Visitors found it peaceful for three "
    "days and then began to ask when the next boat left. Those who stayed longer stopped asking.",
)
"""Plain prose on many subjects, written for this project. A model should still find it likely after other training."""
