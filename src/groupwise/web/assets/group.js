// A group in a dialog: the prompt, and a card for each completion.
import { change, state } from "./address.js";
import { nearestIndex } from "./curves.js";
import { button, byId, emptyState, make, setText } from "./dom.js";
import { askGroups, hasNews, keyOfGroup, KINDS, list, noFilters, refilter, SIGNS, turn, WORDS } from "./group-list.js";
import { listen } from "./hub.js";
import { count, isNumber, many, plain } from "./numbers.js";
import { runOf } from "./runs.js";
import { get, Refused, runPath, unlessGone } from "./server.js";
import { hideTip, listenToTokens, prepareTokens, showScale, textOf } from "./tokens.js";
import { visible } from "./visible.js";

const dialog = byId("group");
let openedKey = "";
let opened = null;

const fetchGroup = (key) => {
  const [step, index] = key.split(".");
  return get(runPath(state.run, "group"), { kind: state.kind, step, index });
};
// Show the group in the address, and new groups.
export const freshenGroups = async () => {
  if (state.view !== "groups" || !runOf(state.run)) return;
  if (hasNews() && !(dialog.open && list.answer)) await askGroups();
  if (state.group && openedKey !== state.group) await openGroup(state.group);
};
const openGroup = async (key, isPlace) => {
  openedKey = key;
  change({ group: key }, isPlace);
  let answer;
  try {
    answer = await fetchGroup(key);
  } catch (failure) {
    if (openedKey !== key) return;
    if (!(failure instanceof Refused)) { openedKey = ""; throw failure; }
    answer = { problem: null, sentence: failure.message };
  }
  // Another group may have been opened meanwhile.
  if (openedKey !== key) return;
  opened = answer;
  showGroup(answer, key);
  if (!dialog.open) { dialog.showModal(); byId("close").focus({ preventScroll: true }); }
  byId("group-body").scrollTop = 0;
};

const closeGroup = () => {
  const row = list.rows.get(openedKey);
  openedKey = "";
  opened = null;
  hideTip();
  dialog.close();
  byId("group-body").replaceChildren();
  change({ group: "" });
  if (row) row.row.focus({ preventScroll: true });
};

export const closeUnlessWanted = () => { if (!state.group && dialog.open) closeGroup(); };

const placeOf = (key) => (list.answer ? list.answer.groups.findIndex((group) => keyOfGroup(group) === key) : -1);
const goBy = async (by) => {
  const listed = list.answer;
  if (!listed || !listed.groups.length) return;
  const place = placeOf(openedKey) + by;
  if (place >= 0 && place < listed.groups.length) { await openGroup(keyOfGroup(listed.groups[place])); return; }
  const isMore = by > 0 ? listed.offset + listed.groups.length < listed.total : listed.offset > 0;
  if (!isMore) return;
  await turn(by);
  const next = list.answer.groups.at(by > 0 ? 0 : -1);
  if (next) await openGroup(keyOfGroup(next));
};
const showSteps = (key) => {
  const place = placeOf(key);
  const listed = list.answer;
  const at = place < 0 ? "" : `${count(listed.offset + place + 1)} of ${count(listed.total)}`;
  setText(byId("group-place"), at);
  byId("previous").disabled = place < 0 || listed.offset + place === 0;
  byId("next").disabled = place < 0 || listed.offset + place + 1 >= listed.total;
};

const showGroup = (group, key) => {
  hideTip();
  showSteps(key);
  const body = byId("group-body");
  if (!group.problem) {
    setText(byId("group-title"), `step ${key.split(".")[0]}`);
    byId("token-tools").hidden = true;
    body.replaceChildren(emptyState("This group cannot be shown.", visible(group.sentence)));
    return;
  }
  setText(byId("group-title"), `step ${plain(group.step)} · ${visible(group.problem.id)}`);
  const facts = [visible(group.stage), `mean reward ${plain(group.mean_reward)}`, sayingOf(group),
    many(group.rollouts.length, "completion"), many(group.num_prompt_tokens, "prompt token")];
  const cards = make("div", group.rollouts.length > 1 ? "cards" : "cards alone");
  cards.id = "cards";
  const tokenScale = prepareTokens(group);
  const most = group.rollouts.reduce((top, { advantage }) => Math.max(top, Math.abs(advantage || 0)), 0);
  cards.append(...inOrder(group.rollouts).map(([rollout, number]) =>
    cardOf(rollout, number, { group, most, scale: tokenScale })));
  body.replaceChildren(make("p", "dim", facts.filter(Boolean).join(" · ")), promptOf(group),
    ...tokenSentence(group), ...group.warnings.map((text) => make("p", "dim", visible(text))), cards);
  byId("token-tools").hidden = false;
  byId("colour-tool").hidden = !group.has_tokens;
  showScale(tokenScale);
};
// Nothing is learned from held-out groups, with or without signal.
const sayingOf = (group) => {
  if (group.has_signal) return `spread of rewards ${plain(group.spread)}`;
  return group.kind === "eval" ? "" : "no signal: all rewards are equal, so nothing is learned";
};
const inOrder = (rollouts) => {
  const numbered = rollouts.map((rollout, number) => [rollout, number]);
  const value = (number) => (isNumber(number) ? number : -Infinity);
  if (state.order === "best") numbered.sort(([a], [b]) => value(b.reward) - value(a.reward));
  if (state.order === "worst") numbered.sort(([a], [b]) => value(a.reward) - value(b.reward));
  if (state.order === "longest") numbered.sort(([a], [b]) => b.num_tokens - a.num_tokens);
  return numbered;
};

const promptOf = ({ problem, rollouts }) => {
  const place = make("div", "prompt");
  for (const message of problem.messages) {
    const block = make("div", "message");
    const text = textOf(message.content, `Message of ${message.role}`, { numTexts: rollouts.length });
    block.append(make("h3", "dim", visible(message.role)), text);
    place.append(block);
  }
  const gold = make("p", "gold");
  gold.append(make("span", "dim", "answer "), make("b", "", visible(problem.answer_in_words) || "–"));
  const meta = Object.entries(problem.meta || {}).map(([name, value]) => `${name} ${JSON.stringify(value)}`);
  if (meta.length) gold.append(make("span", "dim", " · " + visible(meta.join(" · ").slice(0, 400))));
  const elsewhere = button("This problem at other steps", () => {
    closeGroup();
    refilter({ ...noFilters(), problem: problem.id });
  }, "link");
  gold.append(" ", elsewhere);
  place.append(gold);
  return place;
};

const SYMBOLS = { 1: "▲", 0: "●", "-1": "▼" };
const advantageOf = (value, most) => {
  const sign = isNumber(value) ? Math.sign(value) : 0;
  const element = make("div", "advantage " + { 1: "up", 0: "flat", "-1": "down" }[sign]);
  const bar = make("div", "advantage-bar");
  const fill = make("i");
  const share = most > 0 && sign ? (50 * Math.abs(value)) / most : 0;
  fill.style.width = share + "%";
  fill.style.left = (sign < 0 ? 50 - share : 50) + "%";
  bar.append(fill);
  const words = isNumber(value) ? (sign > 0 ? "+" : sign < 0 ? "−" : "") + plain(Math.abs(value)) : "–";
  element.append(bar, make("b", "", `${SYMBOLS[sign]} ${words}`), make("span", "dim", "advantage"));
  return element;
};
const FINISHES = { stop: "ended", length: "cut off at the length limit", aborted: "aborted" };
const cardOf = (rollout, number, { group, most, scale }) => {
  const { score } = rollout;
  const card = make("article", "rollout card");
  card.dataset.rollout = number;
  const head = make("div", "rollout-head");
  const verdict = make("span", "pill " + KINDS[score.verdict], `${SIGNS[score.verdict]} ${WORDS[score.verdict]}`);
  head.append(make("h3", "", `${number + 1}`), verdict, make("b", "reward", `reward ${plain(rollout.reward)}`),
    make("span", "dim", `${plain(rollout.num_tokens)} tokens`),
    make("span", rollout.finish === "stop" ? "dim" : "badge", FINISHES[rollout.finish] || visible(rollout.finish)));
  card.append(head);
  if (rollout.reward_terms.length) card.append(termsOf(rollout.reward_terms, rollout.reward));
  if (group.kind !== "eval") card.append(advantageOf(rollout.advantage, most));
  const label = `Completion ${number + 1}`;
  if (group.has_tokens && !rollout.tokens) {
    card.append(make("p", "dim", "No token data: the step did not learn from this completion."));
  }
  card.append(textOf(rollout.text, label, { tokens: rollout.tokens, scale, numTexts: group.rollouts.length }));
  if (score.detail) card.append(make("p", "dim detail", `verifier: ${visible(score.detail)}`));
  const share = rollout.logprob_mean;
  const facts = [visible(score.verifier), `policy version ${plain(rollout.policy_version)}`];
  if (isNumber(share)) facts.push(`mean logprob ${plain(share)}`);
  if (isNumber(score.process)) facts.push(`reasoning score ${plain(score.process)}`);
  card.append(make("p", "dim", facts.filter(Boolean).join(" · ")));
  return card;
};
// The reward as a sum: "correct 1 + format 0.1 × 0.5 − length 0.02 = 1.03".
const termsOf = (terms, reward) => {
  const place = make("p", "terms");
  terms.forEach(({ name, value, factor, amount }, index) => {
    const isWeighted = isNumber(value) && factor !== 1;
    const isNegative = !isWeighted && amount < 0;
    const sign = index ? (isNegative ? " − " : " + ") : isNegative ? "−" : "";
    const term = make("span", amount === 0 ? "zero" : "", `${sign}${visible(name)} `);
    term.append(make("b", "", plain(isWeighted ? value : isNumber(amount) ? Math.abs(amount) : amount)));
    if (isWeighted) term.append(` × ${signed(factor)}`);
    place.append(term);
  });
  place.append(make("span", "", " = "), make("b", "", plain(reward)));
  return place;
};
const signed = (value) => (value < 0 ? `(−${plain(-value)})` : plain(value));
const tokenSentence = (group) => {
  if (group.has_tokens) return [];
  const place = make("p", "dim");
  if (group.kind === "eval") {
    place.textContent = "Held-out completions have no token data: it is recorded only in training.";
    return [place];
  }
  place.append(`Token data of step ${plain(group.step)} was not recorded: see `, make("code", "",
    "logging.tokens_every_steps"), ". ");
  const steps = list.answer ? list.answer.token_steps : [];
  const near = steps.length ? steps[nearestIndex(steps, group.step)] : null;
  if (near !== null) {
    place.append(button(`Groups of step ${plain(near)}`, () => {
      closeGroup();
      refilter({ ...noFilters(), first_step: String(near), last_step: String(near) });
    }, "link"));
  }
  return [place];
};

byId("previous").addEventListener("click", () => goBy(-1).catch(unlessGone));
byId("next").addEventListener("click", () => goBy(1).catch(unlessGone));
byId("close").addEventListener("click", closeGroup);
dialog.addEventListener("click", (event) => { if (event.target === dialog) closeGroup(); });
dialog.addEventListener("keydown", (event) => {
  const isTaken = event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey
    || ["SELECT", "INPUT"].includes(event.target.tagName);
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (isTaken || !by) return;
  event.preventDefault();
  goBy(by).catch(unlessGone);
});
// The event comes late: another group may already be loading.
dialog.addEventListener("close", () => { if (opened && !dialog.open) closeGroup(); });
for (const name of ["colour", "order"]) {
  byId(name).addEventListener("change", () => {
    change({ [name]: byId(name).value });
    if (opened) showGroup(opened, openedKey);
  });
}
listenToTokens(dialog);
listen("group chosen", (key) => openGroup(key, true));
