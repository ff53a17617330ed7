// The first screen, above the curves: current state, vital signs, findings.
import { state } from "./address.js";
import { byId, colourOf, copyButton, make, paint, sentence, setText } from "./dom.js";
import { interval, percent, plain, seconds } from "./numbers.js";
import { PHASES } from "./panels.js";
import { dataOf, findingsOf, lastOf, meaningOf, nameOf, runOf } from "./runs.js";
import { visible } from "./visible.js";

const showHead = () => {
  const run = runOf(state.run);
  byId("head").hidden = !run;
  if (!run) return;
  setText(byId("run-title"), visible(nameOf(run.id)));
  byId("run-dot").className = "dot " + run.state;
  setText(byId("run-state"), run.state);
  const facts = [run.task, run.model, run.stages.map((stage) => stage.name).join(" → "), run.reason];
  setText(byId("run-facts"), visible(facts.filter(Boolean).join(" · ")));
};

const tile = (value, words, title) => {
  const element = make("div", "tile");
  element.append(make("b", "", value), make("span", "", words));
  if (title) element.title = title;
  return element;
};
export const showNow = () => {
  showHead();
  const run = runOf(state.run);
  if (!run || state.view !== "overview") return;
  const tiles = [tile(run.planned_steps ? `${plain(run.step)} / ${plain(run.planned_steps)}` : plain(run.step),
    run.stage ? `step, in ${visible(run.stage)}` : "step")];
  const spent = run.phase ? run.phase.seconds : {};
  tiles.push(tile(seconds(spent.step ?? run.step_s), "newest step"));
  const speed = lastOf(dataOf(run.id), "engine/tokens_per_s");
  tiles.push(tile(plain(speed), "tokens/s", meaningOf("engine/tokens_per_s")));
  tiles.push(tile(seconds(run.last_write_s), "since last write"));
  if (run.state === "running" && run.left_s !== null) tiles.push(tile(seconds(run.left_s), "left at this pace"));
  if (run.last_eval) {
    tiles.push(tile(percent(run.last_eval.pass_at_1), "held-out, "
      + `${interval(run.last_eval.low, run.last_eval.high, "share")} (step ${plain(run.last_eval.step)})`,
      meaningOf("eval/pass_at_1")));
  }
  byId("tiles").replaceChildren(...tiles);
  showPhases(run, spent);
};
const showPhases = (run, spent) => {
  const parts = ["sample", "score", "logprobs", "update", "tokens"];
  const inside = parts.reduce((sum, name) => sum + (spent[name] || 0), 0);
  const all = { ...spent, other: Math.max(0, (spent.step || 0) - inside) };
  const shown = PHASES.filter(([name]) => all[name] > 0);
  const total = shown.reduce((sum, [name]) => sum + all[name], 0);
  byId("phases").replaceChildren(...shown.map(([name, slot]) => {
    const part = paint(make("div"), colourOf(slot));
    part.style.flexGrow = all[name] / total;
    part.title = `${name}: ${seconds(all[name])}, ${percent(all[name] / total)}. ${meaningOf(`time/${name}_s`)}`;
    return part;
  }));
  byId("phases").setAttribute("aria-label", "The newest step: " + shown.map(([name]) =>
    `${name} ${seconds(all[name])}`).join(", "));
  byId("phase-legend").replaceChildren(...shown.map(([name, slot]) => {
    const entry = make("span");
    entry.append(paint(make("i", "swatch"), colourOf(slot)), `${name} ${seconds(all[name])}`);
    return entry;
  }));
  const isWaiting = run.state === "running" && run.phase;
  setText(byId("now-sentence"), !run.phase ? "No step has been recorded yet." : isWaiting
    ? `Step ${plain(run.phase.step + 1)} has been running for ${seconds(run.phase.ago_s)}`
      + (run.step_s ? `; steps usually take ${seconds(run.step_s)}.` : ".")
    : `The newest step was written ${seconds(run.phase.ago_s)} ago.`);
};

const showSigns = (found) => {
  const stages = found ? found.stages.filter((stage) => stage.vital_signs.length) : [];
  const stage = stages.at(-1);
  const isUsual = stage && stage.is_loss_zero && stage.has_gradient;
  setText(byId("signs-title"), isUsual ? "The loss is 0. Is it training?" : "Is it training?");
  if (!stage) {
    const isLearning = found && found.stages.length;
    byId("signs").replaceChildren(make("p", "dim", !found ? "Reading the run …" : found.error
      ? "The run cannot be examined; the reason is below." : isLearning
      ? "This stage has no rewards: its loss is a negative log-likelihood and should fall. See SFT loss below."
      : "No step has been recorded yet."));
    return;
  }
  const list = make("ul", "signs");
  list.append(...stage.vital_signs.map((line) => make("li", "", visible(line))));
  const place = make("p", "stage-name", `stage ${visible(stage.name)}, steps ${plain(stage.first_step)} to `
    + plain(stage.last_step));
  byId("signs").replaceChildren(list, place);
};
export const showFindings = () => {
  const found = findingsOf(state.run);
  showSigns(found);
  const place = byId("findings");
  const findings = found ? found.findings : [];
  // A problem is the first thing to see.
  byId("findings-card").classList.toggle("urgent", findings.some((finding) => finding.severity === "problem"));
  setText(byId("findings-step"), found && !found.error ? `as of step ${plain(found.as_of_step)}` : "");
  if (findings.length) { place.replaceChildren(...findings.map(findingOf)); return; }
  const words = found ? found.error || found.clean_bill || "No steps to examine yet." : "Reading the run …";
  place.replaceChildren(make("p", "dim", visible(words)));
};
const findingOf = (finding) => {
  const element = make("article", "finding " + finding.severity);
  const title = make("h3");
  const severity = make("span", "badge " + finding.severity, finding.severity);
  const place = `stage ${visible(finding.stage)}, steps ${plain(finding.first_step)} to ${plain(finding.last_step)}`;
  title.append(severity, make("span", "", visible(finding.title)), make("span", "dim", place));
  const { advice, key, value } = finding.change;
  element.append(title, sentence(finding.seen), sentence(finding.means, "dim"), sentence(advice));
  if (key) {
    const line = `${visible(key)} = ${visible(JSON.stringify(value))}`;
    const change = make("div", "change");
    const copy = copyButton(line);
    copy.setAttribute("aria-label", "Copy " + line);
    change.append(make("code", "", line), copy);
    element.append(change);
  }
  return element;
};
